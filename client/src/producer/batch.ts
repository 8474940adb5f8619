// What is sent together under one number, and what its sender is told of it.

/**
 * A batch as it is remembered. The events of a number never change, except that it may be made smaller as long as no try of it
 * can have been taken: that is what makes a repeat safe.
 */
export interface Numbered {
  readonly epoch: number;
  readonly sequence: number;
  readonly first: number;
  readonly last: number;
  /** Whether a try may have been taken whose answer did not come. */
  readonly doubtful: boolean;
}

export interface Batch {
  readonly number: Numbered;
  /** One JSON object each. */
  readonly lines: readonly string[];
}

/** What the server said of the request that an event was in. */
export interface Receipt {
  /** Its token, for `GET /views/{view}?after=<ack>`; empty in the rare case that nobody can tell it any more. */
  readonly ack: string;
  /** The request had been taken before and its answer was lost; which events were rejected is then only known in the stream `dead`. */
  readonly repeated: boolean;
  /** How many events of the request an overloaded server dropped by its declared rule. */
  readonly shed: number;
}
