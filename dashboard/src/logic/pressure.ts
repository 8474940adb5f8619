// Says in words why senders wait: the server names the stream, the view, the room or the rule; people read a sentence.
import type { Pressure } from "../server/documents";
import * as format from "./format";

export interface Told {
  headline: string;
  lines: string[];
  hint: string | null;
}

const HEADLINES: Record<string, string> = {
  limiting: "Senders are held back",
  thrashing: "Limits go on and off",
  lagging: "A view does not keep up",
};

/** Null while all is well. */
export function tell(pressure: Pressure | undefined): Told | null {
  if (!pressure || pressure.state === "ok") return null;
  const lines = (pressure.because ?? []).map(line).filter((text) => text !== "");
  return { headline: HEADLINES[pressure.state] ?? pressure.state, lines, hint: pressure.hint ?? null };
}

function line(because: Pressure["because"][number]): string {
  if (because.view !== undefined) {
    const behind = `${because.view} is ${format.compact(because.lag_events ?? 0)} events and ${format.span(because.lag_s ?? 0)} behind ${because.stream}`;
    return `${behind} (max_lag ${because.max_lag}); senders are asked to come again in ${format.span(because.retry_after_s ?? 0)}`;
  }
  if (because.shed !== undefined) return `${because.stream} keeps ${format.compact(100 * (because.part ?? 0))} % of its events (${because.shed})`;
  if (because.room !== undefined) return "as much waits for the log as may";
  return "";
}
