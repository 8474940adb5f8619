// Prints values for people: numbers with separators, times in the reader's own zone, durations in fitting units.
import type { Json } from "../server/documents";
import { isWindow } from "./columns";

export const NOTHING = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const fraction = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const RFC3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

export function number(value: number): string {
  if (Number.isInteger(value)) return whole.format(value);
  if (Math.abs(value) >= 1) return precise.format(value);
  return Math.abs(value) >= 0.001 ? fraction.format(value) : small.format(value);
}

/** A decimal or a big integer, which arrive as text: separators are added, no digit is lost. */
export function digits(text: string): string {
  const parts = /^(-?)(\d+)(\.\d+)?$/.exec(text);
  if (!parts) return text;
  return `${parts[1]}${(parts[2] ?? "").replace(/\B(?=(\d{3})+$)/g, ",")}${parts[3] ?? ""}`;
}

/** For axes and tight places: 12.3K. */
export function compact(value: number): string {
  return Math.abs(value) < 10_000 ? number(value) : short.format(value);
}

export function rate(perSecond: number): string {
  if (perSecond >= 10_000) return short.format(perSecond);
  return perSecond >= 100 || perSecond === 0 ? whole.format(perSecond) : perSecond.toFixed(1);
}

export function milliseconds(ms: number | null): string {
  if (ms === null) return NOTHING;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s` : span(ms / 1_000);
}

/** 3 d 4 h, 4 h 12 min, 12 min, 42 s. */
export function span(seconds: number): string {
  const [s, m, h] = [Math.floor(seconds), Math.floor(seconds / 60), Math.floor(seconds / 3600)];
  if (s < 60) return `${s} s`;
  if (m < 60) return `${m} min`;
  return h < 24 ? `${h} h ${m % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

export function time(text: string, now = new Date()): string {
  const at = new Date(text);
  return at.toDateString() === now.toDateString() ? clock(at) : `${day(at)} ${clock(at)}`;
}

/** What stands under an axis of times, in seconds since 1970: the clock, and below it the day where another one begins; days alone where they lie that far apart. */
export function ticks(seconds: number[], now = new Date()): string[] {
  const [first, second] = seconds;
  if (first !== undefined && second !== undefined && second - first >= 86_400) return seconds.map((s) => day(new Date(s * 1000)));
  let shown = now.toDateString();
  return seconds.map((s) => {
    const at = new Date(s * 1000);
    const label = at.toDateString() === shown ? clock(at) : `${clock(at)}\n${day(at)}`;
    shown = at.toDateString();
    return label;
  });
}

/** A window as its two ends; the day of the end only where it differs. */
export function window(value: { start: string; end: string }, now = new Date()): string {
  const sameDay = new Date(value.start).toDateString() === new Date(value.end).toDateString();
  return `${time(value.start, now)} – ${time(value.end, sameDay ? new Date(value.start) : now)}`;
}

/** Any cell of any view as plain text. */
export function cell(value: Json | undefined): string {
  if (value === null || value === undefined) return NOTHING;
  if (typeof value === "number") return number(value);
  if (typeof value === "string") return RFC3339.test(value) ? time(value) : value;
  if (typeof value === "boolean") return String(value);
  if (isWindow(value)) return window(value);
  if (Array.isArray(value)) return value.map((item) => cell(item)).join(", ");
  return JSON.stringify(value);
}

function clock(at: Date): string {
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return at.getSeconds() || at.getMilliseconds() ? `${minutes}:${two(at.getSeconds())}` : minutes;
}

function two(n: number): string {
  return String(n).padStart(2, "0");
}

function day(at: Date): string {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}
