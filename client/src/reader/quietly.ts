// Calls what the program gave us, and lets its failure be heard without becoming ours.

export function quietly(call: () => void): void {
  try {
    call();
  } catch (error) {
    console.error("penstock: a callback failed", error);
  }
}
