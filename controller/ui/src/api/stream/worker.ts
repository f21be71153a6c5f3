// The shared worker of all tabs. Each version of the UI has its own, since its name has a hash.
import { Hub, type Wanted } from './hub.ts';

const hub = new Hub();
(globalThis as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0]!;
  port.onmessage = ({ data }: MessageEvent<Wanted>) => hub.want(port, data);
};
