// A server that answers with any bytes, for the tests of what is no answer of the service.
import { createServer, type AddressInfo, type Socket } from "node:net";

/** Gets the connection once a whole request has arrived, and writes what it likes. */
export type Answering = (socket: Socket) => void;

/** Runs `work` with the base URL of the server. */
export async function withServer<T>(answering: Answering, work: (baseUrl: string) => Promise<T>): Promise<T> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    let seen = Buffer.alloc(0);
    let answered = false;
    socket.on("error", () => undefined);
    socket.on("close", () => sockets.delete(socket));
    socket.on("data", (chunk) => {
      seen = Buffer.concat([seen, chunk]);
      const end = seen.indexOf("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(seen.subarray(0, Math.max(end, 0)).toString("latin1"))?.[1] ?? 0);
      if (answered || end < 0 || seen.length < end + 4 + length) return;
      answered = true;
      answering(socket);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await work(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  } finally {
    for (const socket of sockets) socket.destroy();
    server.close();
  }
}
