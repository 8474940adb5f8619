// Starts the page in a real browser.
import "uplot/dist/uPlot.min.css";
import "./styles/theme.css";
import "./styles/frame.css";
import "./styles/panels.css";
import "./styles/view.css";
import "./styles/pipeline.css";
import { Page } from "./page";
import { offered } from "./wire/credential";

function socketAddress(): URL {
  const address = new URL("socket", document.baseURI);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return address;
}

new Page({
  open: () => new WebSocket(socketAddress(), offered()),
  random: Math.random,
  later: (run, ms) => {
    const timer = setTimeout(run, ms);
    return () => clearTimeout(timer);
  },
  hidden: () => document.hidden,
}).start();
