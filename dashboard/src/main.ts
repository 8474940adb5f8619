// Starts the page in a real browser.
import "uplot/dist/uPlot.min.css";
import "./styles/theme.css";
import "./styles/frame.css";
import "./styles/panels.css";
import "./styles/view.css";
import "./styles/pipeline.css";
import { Page } from "./page";
import { connect } from "./server/client";
import { key } from "./server/credential";

/** The key lives as long as the tab, and so does what it opens; what anybody may see is kept for the next visit. */
function storageOf(held: string | null): Storage | null {
  try {
    return held ? sessionStorage : localStorage;
  } catch {
    return null; // the browser allows none
  }
}

const held = key();
const page: Page = new Page(
  connect(new URL(".", document.baseURI), {
    ...(held && { key: held }),
    store: held ? "session" : "indexeddb",
    restWhenHidden: true,
    onState: () => page.became(),
  }),
  storageOf(held),
);
page.start();
addEventListener("hashchange", () => location.hash.startsWith("#key=") && location.reload());
