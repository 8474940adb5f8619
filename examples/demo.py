"""One example with its generator, until Ctrl-C: `make demo EXAMPLE=ads`.

python examples/demo.py ads --port 8080
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
GENERATORS = {"royalties": "plays.py", "vending": "town.py"}
"""Of the examples that have more than one program which sends."""


def generator(name: str) -> Path:
    """The program of an example that sends events to a server."""
    if name in GENERATORS:
        return HERE / name / GENERATORS[name]
    (found,) = [path for path in (HERE / name).glob("*.py") if "--url" in path.read_text()]
    return found


def main() -> int:
    names = sorted(path.parent.name for path in HERE.glob("*/app.py") if path.parent.name != "meetup")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=names)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=f"penstock-{options.example}-") as data:
        command = [sys.executable, "-m", "penstock.cli.main", "run", str(HERE / options.example / "app.py")]
        command += ["--data", str(Path(data) / options.example), "--port", str(options.port)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            for line in server.stdout:
                print(line, end="", flush=True)
                if line.startswith("ready "):
                    return watched(options.example, line.split()[1], server)
            return server.wait()
        except KeyboardInterrupt:
            return server.wait()
        finally:
            if server.poll() is None:
                server.terminate()
                server.wait()


def watched(name: str, url: str, server: subprocess.Popen[str]) -> int:
    """Send until the server ends."""
    sender = subprocess.Popen([sys.executable, str(generator(name)), "--url", url])
    try:
        return server.wait()
    finally:
        sender.terminate()
        sender.wait()


if __name__ == "__main__":
    sys.exit(main())
