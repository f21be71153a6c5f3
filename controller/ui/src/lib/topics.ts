import type { RowEvent } from '../api/types.ts';

/** Whether an event is of a topic. */
export const concerns = (topic: string, { kind, namespace, name }: RowEvent): boolean =>
  topic === `${kind}s` || topic === `${kind}/${namespace}/${name}` || (kind === 'inbox' && topic === 'inbox');
