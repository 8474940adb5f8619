"""The phones of the vending example: asks Penstock to be called for every offer, and prints what arrives.

python examples/vending/phones.py --url http://127.0.0.1:8080
"""

import argparse
import json
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


def subscribe(url: str, hook: str) -> dict[str, str]:
    """Leave our address: every change of the channel 'offers' is posted to it."""
    order = json.dumps({"url": hook, "channel": "offers"}).encode()
    request = urllib.request.Request(f"{url}/webhooks", order, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        left: dict[str, str] = json.load(reply)
        return left


def offered(message: dict) -> str | None:
    """What a phone shows; None where an offer ends."""
    if message["type"] != "upsert":
        return None
    row = message["row"]
    return f"{row['person']}: {row['wants']} is {row['metres']:.0f} m away, at {row['machine']}"


class Phones(BaseHTTPRequestHandler):
    secret: Webhook
    seen: set[str] = set()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            message = self.secret.verify(raw, dict(self.headers))
        except WebhookVerificationError:
            self.answer(401)
            return
        if (id := self.headers["webhook-id"]) not in self.seen:  # it may come again, and is then the same
            self.seen.add(id)
            if offer := offered(message):
                print(offer, flush=True)
        self.answer(200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--port", type=int, default=8192)
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Phones)
    left = subscribe(options.url, f"http://127.0.0.1:{server.server_port}/offers")
    Phones.secret = Webhook(left["secret"])
    print(f"offers come to {left['url']}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        request = urllib.request.Request(f"{options.url}/webhooks/{left['id']}", method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    main()
