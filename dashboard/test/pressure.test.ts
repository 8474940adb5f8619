import { describe, expect, it } from "vitest";

import { tell } from "../src/logic/pressure";

const lag = { stream: "rsvps", view: "topics", lag_events: 12_300, lag_s: 42, max_lag: "30 s", retry_after_s: 7 };

describe("what the page says of pressure", () => {
  it("is nothing while all is well, or from a server that does not tell", () => {
    expect(tell(undefined)).toBeNull();
    expect(tell({ state: "ok", because: [], hint: null })).toBeNull();
  });

  it("names the view, the stream and how far it is behind", () => {
    const told = tell({ state: "limiting", because: [lag], hint: "nothing to do" });
    expect(told?.headline).toBe("Senders are held back");
    expect(told?.lines[0]).toContain("topics is 12");
    expect(told?.lines[0]).toContain("behind rsvps (max_lag 30 s)");
    expect(told?.hint).toBe("nothing to do");
  });

  it("tells thrashing from lagging, and shedding from waiting", () => {
    expect(tell({ state: "thrashing", because: [], hint: null })?.headline).toBe("Limits go on and off");
    expect(tell({ state: "lagging", because: [lag], hint: null })?.headline).toBe("A view does not keep up");
    const shed = tell({ state: "limiting", because: [{ stream: "rsvps", shed: "sample", part: 0.25 }], hint: null });
    expect(shed?.lines).toEqual(["rsvps keeps 25 % of its events (sample)"]);
    expect(tell({ state: "limiting", because: [{ room: "full" }], hint: null })?.lines).toEqual(["as much waits for the log as may"]);
  });
});
