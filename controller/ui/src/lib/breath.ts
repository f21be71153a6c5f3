// Long work in pieces, so that the page stays responsive.

const LONGEST = 12;

/** Waits for other work of the page when this one has used its time. */
export function breath(): () => Promise<void> | undefined {
  let since = performance.now();
  return () => {
    if (performance.now() - since < LONGEST) return undefined;
    return new Promise<void>((resolve) => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => {
        since = performance.now();
        channel.port1.close();
        resolve();
      };
      channel.port2.postMessage(0);
    });
  };
}
