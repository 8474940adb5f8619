// Reads /status and fills in what a server that is still starting leaves out, so that no panel has to guard itself.
import type { Client } from "./client";
import type { Status, Stream } from "./documents";

type Sparse = Partial<Omit<Status, "streams">> & { streams?: (Partial<Stream> & { stream: string })[] };

export async function readStatus(client: Client): Promise<Status> {
  return complete(await client.read<Sparse>("status"));
}

export function complete(status: Sparse): Status {
  return {
    ...status,
    app: status.app ?? "",
    streams: (status.streams ?? []).map(completeStream),
    views: status.views ?? [],
    flows: status.flows ?? [],
  };
}

function completeStream(stream: Partial<Stream> & { stream: string }): Stream {
  return {
    stream: stream.stream,
    kind: stream.kind ?? "stream",
    totals: { accepted: 0, duplicates: 0, dead: 0, shed: 0, late: 0, ...stream.totals },
    rates: { accepted: stream.rates?.accepted ?? 0 },
  };
}
