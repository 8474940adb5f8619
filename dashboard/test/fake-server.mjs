// A stand-in for the edge: the built page and the page's part of the wire contract, with data that moves. Tests and eyes use it.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { WebSocketServer } from "ws";
import { FakeApp } from "./fake-app.mjs";

const PAGE = fileURLToPath(new URL("../../penstock/serve/page/", import.meta.url));
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
// The strictest policy the page can live with: everything from its own server.
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'";

/** Serves on 127.0.0.1; `close()` ends it at once, sockets included. */
export async function serve({ port = 0, app = new FakeApp(), every = 200 } = {}) {
  const http = createServer((request, response) => void answer(app, request, response));
  const sockets = new WebSocketServer({ server: http, path: "/socket" });
  sockets.on("connection", (socket) => {
    socket.on("message", (text) => app.take(socket, JSON.parse(text)));
    socket.on("close", () => app.forget(socket));
  });
  await new Promise((done) => http.listen(port, "127.0.0.1", done));
  const timer = every > 0 ? setInterval(() => app.step(), every) : null;
  return {
    app,
    port: http.address().port,
    close: () => new Promise((done) => {
      clearInterval(timer);
      for (const socket of sockets.clients) socket.terminate();
      http.closeAllConnections();
      http.close(done);
    }),
  };
}

async function answer(app, request, response) {
  const path = new URL(request.url, "http://fake").pathname;
  const document = app.document(path);
  if (document) {
    response.setHeader("content-type", "application/json");
    return response.end(JSON.stringify(document));
  }
  const file = normalize(path === "/" ? "/index.html" : path);
  try {
    const body = await readFile(join(PAGE, file));
    response.setHeader("content-type", TYPES[extname(file)] ?? "application/octet-stream");
    response.setHeader("content-security-policy", POLICY);
    response.end(body);
  } catch {
    response.statusCode = 404;
    response.end();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { port } = await serve({ port: Number(process.env.PORT ?? 8901) });
  process.stdout.write(`http://127.0.0.1:${port}\n`);
}
