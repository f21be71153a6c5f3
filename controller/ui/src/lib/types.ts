// The answers of the REST API (design/0033-web-console.md), as far as the pages read them.

export interface Metadata {
  name: string;
  namespace: string;
  uid: string;
  creationTimestamp?: string;
  annotations?: Record<string, string>;
  labels?: Record<string, string>;
}

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  lastTransitionTime: string;
}

export interface Counts {
  add: number;
  change: number;
  destroy: number;
  replace: number;
  import: number;
  outputs?: number;
  moved?: number;
  drifted?: number;
  invoke?: number;
  unread?: boolean;
}

export interface Diagnostic {
  severity: string;
  summary: string;
  detail?: string;
  address?: string;
  file?: string;
  line?: number;
}

export interface RunStatus {
  phase?: string;
  result?: string;
  message?: string;
  nextStep?: string;
  history?: string[];
  startTime?: string;
  completionTime?: string;
  plan?: Counts & {
    checksum: string;
    summary: string;
    tool: string;
    revision?: string;
    madeAt?: string;
    changes?: string[];
  };
  approval?: { checksum?: string; by: string; comment?: string; at: string };
  attempt?: { number: number; podName?: string };
  claim?: Record<string, unknown>;
  progress?: { done: number; total: number; current?: string };
  failure?: {
    class: string;
    reason: string;
    message: string;
    changes: string;
    diagnostics?: Diagnostic[];
  };
  conditions?: Condition[];
}

export interface Run {
  metadata: Metadata;
  spec: Record<string, unknown> & { approval?: { mode?: string; expiresAfter?: string } };
  status?: RunStatus;
}

export interface Act {
  act: string;
  label: string;
  kubectl: string;
  danger: boolean;
  needs: ('Checksum' | 'Comment' | 'Destroys')[];
  remark: boolean;
}

export interface RunPage {
  run: Run;
  acts: Act[];
  next: Act | null;
}

export interface Layer {
  metadata: Metadata;
  spec: Record<string, unknown>;
  status?: Record<string, unknown> & { conditions?: Condition[]; message?: string };
}

export interface LayerPage {
  layer: Layer;
  acts: Act[];
  byHand: { label: string; kubectl: string }[];
}

export interface RepositoryPage {
  repository: Layer;
  acts: Act[];
  deliveries?: Record<string, string>[];
}

export interface Me {
  user: string;
  groups: string[];
  method: string;
  expiresAt?: string;
  version?: string;
}

export type Row = Record<string, unknown> & { namespace: string; name: string };

export interface Page {
  items: Row[];
  total: number;
  facets: Record<string, { value: string; count: number }[]>;
  next: string | null;
  sequence: number;
}

export interface Inbox {
  needs: { why: string; run?: Row; layer?: Row }[];
  running: Row[];
  queue: Row[];
  finished: Row[];
}

export interface ChangeLine {
  of: 'Resource' | 'Drift' | 'Output' | 'Action';
  address: string;
  module?: string;
  type?: string;
  name?: string;
  deposed?: string;
  actions?: string[];
  reason?: string;
  replacePaths?: unknown[];
  importing?: string;
  previousAddress?: string;
  trigger?: string;
  attributes?: Attribute[];
  cut?: boolean;
}

export interface Attribute {
  path: (string | number)[];
  before?: unknown;
  after?: unknown;
  sensitive?: boolean;
  unknown?: boolean;
}
