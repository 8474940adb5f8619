// Keeps what one subscription knows: soon after it has changed, at most once a second, and when the page goes away.
import type { Json, Position, Row } from "./contract.js";
import { checksum } from "./checksum.js";
import { type Question, queryOf, type Target } from "./question.js";
import { canonical } from "./row-key.js";
import { ENTRY_CHARACTERS, type Store } from "./store.js";
import type { World } from "./world.js";

export interface Known {
  readonly position: Position;
  readonly key?: readonly string[];
  readonly rows?: Row[];
}

const FORM = 1; // of an entry; one of another form is ignored
const SAVE_MS = 1000;
const SOON_MS = 20; // a page that goes away may not live to see the end of a write: most have ended by then
const LOAD_MS = 1000; // a store that hangs must not keep the page empty

/** The name of an entry: whose rows these are, of which server, and the answer to which question. */
export function entryName(base: string, who: string, target: Target, question: Question, name = ""): string {
  return [base, who, target.kind, target.name, canonical(queryOf(question) as unknown as Json), name].join(" ");
}

export class Keeping {
  #cancel: (() => void) | null = null;
  #saved: Position | null = null;
  #savedAt = -Infinity;
  #tooLong = Infinity;

  constructor(
    private readonly store: Store,
    private name: string,
    private readonly world: World,
    private readonly known: () => Known | null,
  ) {}

  /** What was found under a name that it does not have any more is not its own. Who is `patient` waits for a slow store. */
  async load(patient = false): Promise<Known | null> {
    const { name } = this;
    let cancel = (): void => {};
    const late = new Promise<null>((resolve) => patient || (cancel = this.world.later(() => resolve(null), LOAD_MS)));
    try {
      const text = await Promise.race([this.store.get(name), late]);
      return text === null || name !== this.name ? null : readKnown(text);
    } catch {
      return null;
    } finally {
      cancel();
    }
  }

  /** Something has changed. */
  touch(): void {
    const waitMs = Math.max(SOON_MS, Math.min(SAVE_MS, this.#savedAt + SAVE_MS - this.world.now()));
    this.#cancel ??= this.world.later(() => this.save(), waitMs);
  }

  /** Write now. */
  save(): void {
    this.#cancel?.();
    this.#cancel = null;
    const known = this.known();
    if (!known || known.position === this.#saved) return;
    const count = known.rows?.length ?? 0;
    if (count >= this.#tooLong) return;
    const body = JSON.stringify({ form: FORM, ...known });
    const text = `${checksum(body)} ${body}`;
    const fits = text.length <= ENTRY_CHARACTERS;
    this.#tooLong = fits ? Infinity : count / 2; // it is not worth writing again before it is much smaller
    this.#saved = known.position;
    this.#savedAt = this.world.now();
    (fits ? this.store.set(this.name, text) : this.store.delete(this.name)).catch(() => (this.#saved = null));
  }

  /** From now on under another name. */
  rename(name: string): void {
    this.name = name;
    this.#saved = null;
    this.#tooLong = Infinity;
  }

  forget(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.store.delete(this.name).catch(() => {});
  }
}

function readKnown(text: string): Known | null {
  const space = text.indexOf(" ");
  const body = text.slice(space + 1);
  if (checksum(body) !== text.slice(0, space)) return null;
  const found = JSON.parse(body) as Known & { form: number };
  return found.form === FORM ? found : null;
}
