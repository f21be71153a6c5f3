// A server with made-up answers, to look at the UI without a cluster. It sends the headers that the console sends.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';

const dist = new URL('../dist/', import.meta.url);
const BASE = '/pawl';
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const ago = (s) => new Date(Date.now() - s * 1000).toISOString();
const SUM = `sha256:${'91ab'.repeat(16)}`;
const REV = 'main@sha1:4be1d02aa5c3f7b19e01c3d2a4b5968778695a4b';

const phases = ['AwaitingApproval', 'Apply', 'Plan', 'Succeeded', 'Failed', 'Pending'];
const results = { Succeeded: ['Applied', 'NoChanges'], Failed: ['Failed', 'Indeterminate'] };
const runRow = (i) => {
  const phase = phases[i % 6];
  const ended = phase in results;
  return { namespace: `team-${i % 7}`, name: `network-prod-${(i * 7919).toString(36)}`, uid: 'u', action: 'Apply', trigger: ['Commit', 'Person', 'Drift'][i % 3], createdAt: ago(60 + i * 97), worked: 12 + ((i * 37) % 90), layer: `network-${i % 50}`, phase, ...(ended ? { result: results[phase][i % 2], endedAt: ago(i * 97) } : {}), ...(phase === 'Pending' ? { wait: { why: 'Queued', place: i } } : {}), revision: REV, changes: { add: i % 5, change: i % 3, destroy: i % 4, replace: i % 4 && 1 }, ...(phase === 'Apply' ? { progress: { done: 12, total: 40 } } : {}) };
};
const layerRow = (i) => ({ namespace: `team-${i % 7}`, name: `network-${i}`, uid: 'u', state: ['InSync', 'AwaitingApproval', 'NotApplied', 'Drifted', 'Failed'][i % 5], repository: `infra-${i % 9}`, path: `stacks/network/${i}`, ref: 'main', revision: REV, lastResult: ['NoChanges', 'Applied', 'Failed'][i % 3], ...(i % 11 ? {} : { driftSince: ago(i * 500 + 4000) }), ...(i % 13 ? {} : { reason: 'WaitsForLayer' }) });
const page = (all, make, facets, query) => {
  const from = Number(query.get('cursor') ?? 0);
  const limit = Number(query.get('limit') ?? 100);
  const items = Array.from({ length: Math.min(limit, all - from) }, (_, i) => make(from + i));
  return { items, total: all, facets, next: from + limit < all ? String(from + limit) : null, sequence: '1' };
};
const act = (name, label, more = {}) => ({ act: name, label, danger: false, needs: [], remark: false, kubectl: `kubectl annotate -n prod --overwrite terraformrun/7f3c pawl.run/${name}=true`, ...more });
const metadata = (name) => ({ name, namespace: 'prod', uid: 'u', creationTimestamp: ago(400), labels: { 'pawl.run/layer': 'network-prod' } });
const steps = [['source', 90, 89.6], ['init', 89, 86], ['plan', 86, 45], ['show', 45, 44]].map(([name, a, b]) => ({ name, attempt: 1, startedAt: ago(a), finishedAt: ago(b), exitCode: 0 }));
const waiting = {
  row: { ...runRow(0), namespace: 'prod', name: '7f3c' }, sequence: '1-1',
  run: { metadata: metadata('7f3c'), spec: { operation: 'Apply', source: { git: { url: 'x', revision: REV } }, tool: { name: 'OpenTofu', version: '1.10.6' }, approval: { expiresAfter: '24h', holdFor: '5m' } }, status: { phase: 'AwaitingApproval', startTime: ago(95), steps, attempt: { number: 1, open: true }, plan: { add: 2, change: 313, destroy: 2, replace: 1, import: 3, moved: 1, checksum: SUM, createdAt: ago(44), tool: 'OpenTofu 1.10.6', revision: REV } } },
  acts: [act('approve', 'Approve', { needs: ['Checksum', 'Destroys'], danger: true, remark: true, kubectl: `kubectl annotate -n prod --overwrite terraformrun/7f3c pawl.run/approve=${SUM} pawl.run/approved-by="$(kubectl auth whoami -o jsonpath={.status.userInfo.username})"` }), act('deny', 'Deny', { needs: ['Comment'] }), act('cancel', 'Cancel', { danger: true, needs: ['Comment'] })],
  next: null,
};
const failed = {
  row: { ...runRow(10), namespace: 'prod', name: 'failed' }, sequence: '1-1',
  run: { metadata: metadata('failed'), spec: { ...waiting.run.spec }, status: { ...waiting.run.status, phase: 'Failed', result: 'Indeterminate', completionTime: ago(5), steps: [...steps, { name: 'apply', attempt: 1, startedAt: ago(40), finishedAt: ago(6), exitCode: 1 }], approval: { by: 'carol', checksum: SUM }, claim: { at: ago(41), checksum: SUM, attempt: 1 }, progress: { done: 3, total: 8, current: 'aws_db_instance.main' }, message: 'apply ended with exit code 1 <b>bold</b>', nextStep: 'kubectl annotate terraformrun failed pawl.run/recover=true', history: ['attempt 1: node lost'], journal: { recorded: 3, uncertain: ['aws_db_instance.main'] }, failure: { class: 'Transient', reason: 'ApplyFailed', changes: 'Some', message: 'm', diagnostics: [{ severity: 'error', summary: 'creating RDS DB Instance (main): operation error', detail: 'StorageQuotaExceeded: the account has no storage left', file: 'main.tf', line: 41, address: 'aws_db_instance.main' }] } } },
  acts: [act('recover', 'Recover'), act('rerun', 'Run again'), act('abandon', 'Abandon apply', { danger: true, needs: ['Comment'] })],
  next: act('recover', 'Recover'),
};
const applying = {
  row: { ...runRow(1), namespace: 'prod', name: 'applying', reason: 'Frozen', wait: undefined }, sequence: '1-1', next: null,
  run: { metadata: metadata('applying'), spec: waiting.run.spec, status: { ...waiting.run.status, phase: 'Apply', steps: [...steps, { name: 'apply', attempt: 1, startedAt: ago(40) }], approval: { by: 'carol', checksum: SUM }, claim: { at: ago(41), checksum: SUM, attempt: 1 }, progress: { done: 2, total: 40, current: 'aws_db_instance.main' } } },
  acts: [act('cancel', 'Cancel', { danger: true, needs: ['Comment'], kubectl: 'kubectl annotate -n prod --overwrite tfrun.pawl.run/applying pawl.run/cancel=REASON' })],
};
const queued = {
  row: { ...runRow(5), namespace: 'prod', name: 'queued', reason: 'Frozen', wait: { why: 'nothing new begins: namespace prod is frozen by its annotation pawl.run/freeze' } }, sequence: '1-1', next: null,
  run: { metadata: metadata('queued'), spec: waiting.run.spec, status: { phase: 'Pending' } }, acts: applying.acts,
};
const event = (event, action, address, s, id) => JSON.stringify({ event, action, address, type: 'x', at: ago(s), ...(id ? { id } : {}) });
const journal = [JSON.stringify({ event: 'begin', managed: true, state: 's' }), event('start', 'create', 'aws_subnet.c', 40), event('start', 'create', 'module.iam.aws_iam_policy.ci', 39), event('complete', 'create', 'aws_subnet.c', 36, 'subnet-0a1'), event('start', 'update', 'aws_db_instance.main', 35), event('errored', 'create', 'module.iam.aws_iam_policy.ci', 30), event('start', 'create', 'aws_instance.new["a"]', 12), event('start', 'delete', 'aws_subnet.b', 30), event('complete', 'delete', 'aws_subnet.b', 9, 'subnet-0b7')].join('\n') + '\n';
const layerPage = {
  row: { ...layerRow(1), namespace: 'prod', name: 'network-prod', run: '7f3c', state: 'AwaitingApproval', reason: 'ApprovalNeeded' }, sequence: '1-1', state: { stack: 'network-prod-4k2j', workspace: 'default' },
  runs: Array.from({ length: 24 }, (_, i) => ({ ...runRow(i * 5), namespace: 'prod', layer: 'network-prod' })),
  layer: { metadata: metadata('network-prod'), spec: { repository: { name: 'infra' }, path: 'stacks/network', ref: 'main', remediation: { onCommit: 'Manual', onDrift: 'Dry' }, deletionPolicy: 'Destroy' }, status: { state: 'ApplyNeeded', revision: REV, source: { subject: 'Grow the subnet', revision: REV }, pending: { run: '7f3c', summary: '+2 ~313 -1 ±1', checksum: SUM }, lastPlan: { at: ago(400), run: '7f3c', revision: REV }, lastApply: { at: ago(90000), result: 'Applied', run: 'network-prod-6b2', revision: REV }, nextDriftCheck: ago(-3600), effective: ['tool.name=OpenTofu (repository)', 'tool.version=1.10.6 (repository)', 'variables.region=eu-central-1 (layer)', 'backend.config.key=… (repository)', 'timeouts.apply=2h (layer)', 'stack=network-prod-4k2j (repository and path)'], drift: { since: ago(7200), objects: ['aws_instance.web[3]: tags.Owner', 'aws_security_group.db: ingress'], run: 'network-prod-7c1' } } },
  acts: [act('plan', 'Plan now'), act('suspend', 'Suspend')], byHand: [{ label: 'Set spec.suspend to true', kubectl: `kubectl patch -n prod tflayer.pawl.run/network-prod --type=merge -p '{"spec":{"suspend":true}}'` }],
};
const statePage = {
  stack: 'network-prod-4k2j', workspace: 'default',
  lock: { id: '2f9', run: 'network-prod-7c1', attempt: 2, since: ago(5000), info: { ID: '2f9', Operation: 'OperationTypeApply', Who: 'root@network-prod-7c1-a2', Version: '1.10.6' } },
  versions: Array.from({ length: 31 }, (_, i) => ({ number: 31 - i, at: ago(5000 + i * 86_000), by: i === 4 ? 'carol' : `run network-prod-${(i * 77).toString(36)}, attempt 1`, reason: i === 4 ? '26 was wrong' : null, size: 48_211 - i * 311, serial: 90 - i })),
  notes: [{ at: ago(350_000), what: 'restored version 25 as 27', by: 'carol', reason: '26 was wrong' }],
  unlock: act('unlock', 'Remove lock', { danger: true, needs: ['Comment'], kubectl: `echo '{"workspace":"default","reason":"REASON"}' | kubectl create --raw /apis/read.pawl.run/v1alpha1/namespaces/prod/states/network-prod-4k2j/unlock -f -` }),
};
const outputs = { version: 31, sensitive: 2, outputs: { vpc_id: 'vpc-0a1b2c', zones: ['eu-central-1a', 'eu-central-1b'], endpoints: { db: 'db.internal', cache: 'cache.internal' } } };
const repositoryPage = {
  row: { namespace: 'prod', name: 'infra', uid: '3c1d7c0e-8e0f-4d1c-9d3e-2b8f6f1a7c11', url: 'https://git.example/infra.git', state: 'Failed', reason: 'RefsFailing', layers: 12, refs: 3, failing: 1 },
  repository: { metadata: metadata('infra'), spec: { url: 'https://git.example/infra.git', interval: '5m', webhook: { secretRef: { name: 'hook' } }, allowedNamespaces: ['staging'] }, status: { conditions: [{ type: 'Ready', status: 'False', reason: 'RefsFailing', message: '1 of 3 refs cannot be resolved: dev' }], refs: [{ name: 'main', since: ago(4000), took: '1.2s', commit: { revision: REV.split(':')[1], author: 'Carol <carol@example.com>', subject: 'Grow the subnet' } }, { name: 'v1.4.0', since: ago(900_000), took: '0.4s', commit: { revision: 'a1'.repeat(20), author: 'Dan <dan@example.com>', subject: 'Release 1.4.0' } }, { name: 'dev', failure: { class: 'Credentials', reason: 'AuthenticationFailed', message: 'remote: HTTP Basic: Access denied', nextStep: 'check the Secret prod/git of spec.secretRef; Pawl tries again by itself', times: 3, since: ago(900) } }] } },
  acts: [act('reconcile', 'Check refs now')],
  deliveriesSince: ago(200_000),
  deliveries: [{ time: ago(100), repository: 'prod/infra', forge: 'Gitea', event: 'push', id: 'c9f1a4e0-6a2f-4b3d-8d7e-0f5a2c1b3d4e', verdict: 'accepted', reason: 'the refs of the repository are checked' }, { time: ago(3000), repository: 'prod/infra', forge: 'Gitea', event: 'issue_comment', id: 'd0', verdict: 'ignored', reason: 'this event moves no ref; nothing is checked' }, { time: ago(90_000), repository: 'prod/infra', forge: 'GitHub', event: 'ping', id: null, verdict: 'form', reason: 'the body is a form; choose application/json as the content type of the webhook' }],
};
const policy = (more) => JSON.stringify({ Version: '2012-10-17', Statement: [{ Effect: 'Allow', Action: ['s3:GetObject', ...more], Resource: '*' }] });
const changes = (many) => [
  { version: 1, counts: {} },
  { of: 'Resource', address: 'aws_subnet.b', type: 'aws_subnet', actions: ['delete'], reason: 'delete_because_no_resource_config', attributes: [{ path: ['cidr_block'], before: '10.0.1.0/24' }] },
  { of: 'Resource', address: 'aws_db_instance.main', type: 'aws_db_instance', actions: ['delete', 'create'], reason: 'replace_because_cannot_update', replacePaths: [['engine_version']], attributes: [{ path: ['engine_version'], before: '14', after: '16' }, { path: ['endpoint'], before: 'db.example', unknown: true }, { path: ['password'], sensitive: true }] },
  { of: 'Resource', address: 'module.iam.aws_iam_policy.ci', module: 'module.iam', type: 'aws_iam_policy', actions: ['update'], attributes: [{ path: ['policy'], before: policy([]), after: policy(['s3:DeleteObject']) }] },
  { of: 'Resource', address: 'aws_instance.new["a"]', type: 'aws_instance', actions: ['create'], attributes: [{ path: ['ami'], after: 'ami-1' }, { path: ['tags'], after: { Name: 'x', Owner: 'b' } }, { path: ['id'], unknown: true }] },
  { of: 'Resource', address: 'aws_s3_bucket.logs', type: 'aws_s3_bucket', actions: ['no-op'], importing: 'logs-prod' },
  ...Array.from({ length: many }, (_, i) => ({ of: 'Resource', address: `module.app[${i % 20}].aws_instance.web[${i}]`, module: `module.app[${i % 20}]`, type: 'aws_instance', actions: ['update'], attributes: [{ path: ['tags', 'Owner'], before: 'a', after: 'b' }] })),
  { of: 'Action', address: 'action.aws_lambda_invoke.warm', type: 'aws_lambda_invoke', actions: [], trigger: 'aws_instance.new["a"]' },
  { of: 'Output', address: 'output.vpc_id', actions: ['update'], attributes: [{ path: [], before: 'vpc-1', after: 'vpc-2' }] },
];
const log = (n) => Array.from({ length: n }, (_, i) => (i === 70 ? '\u001b[31m╷\n│ Error:\u001b[0m \u001b[1mcreating RDS DB Instance <script>\u001b[0m' : `\u001b[32mmodule.app[${i}]\u001b[0m: Refreshing state... [id=i-${i}]`)).join('\n') + '\n';
const state = { isIn: true, fail: '' };
const facets = { state: ['InSync', 'AwaitingApproval', 'NotApplied', 'Drifted', 'Failed'].map((value) => ({ value, count: 2000 })), namespace: [{ value: 'team-1', count: 1428 }] };
const phaseFacets = { phase: phases.map((value) => ({ value, count: 3333 })) };

function answer(path, query, method) {
  if (path === 'login') return { oidc: '/pawl/login/oidc' };
  if (path === 'login/token' || path === 'login/code') return (state.isIn = true), me;
  if (path === 'logout') {
    for (const stream of streams) stream.end();
    return (state.isIn = false), undefined;
  }
  if (!state.isIn) return [401, { status: 401, reason: 'Unauthorized', detail: 'Log in.' }];
  if (path === 'me') return me;
  if (state.fail === 'forbidden') return [403, { status: 403, reason: 'Forbidden', detail: 'terraformruns.pawl.run "7f3c" is forbidden: User "carol" cannot get resource "terraformruns" in API group "pawl.run" in the namespace "prod"' }];
  if (state.fail === 'down') return [503, { status: 503, reason: 'Unavailable', detail: 'the API server did not answer; nothing was changed' }];
  const isEmpty = state.fail === 'empty';
  if (path === 'layers') return page(isEmpty ? 0 : 10_000, layerRow, facets, query);
  if (path === 'runs') return page(isEmpty ? 0 : 20_000, runRow, phaseFacets, query);
  if (path === 'repositories') return page(isEmpty ? 0 : 9, (i) => ({ namespace: 'prod', name: `infra-${i}`, url: 'https://git.example/infra.git', state: i === 3 ? 'Failing' : 'Ready', layers: 12, refs: 3, failing: i === 3 ? 1 : 0 }), {}, query);
  if (path === 'inbox') {
    const of = (n, k) => (isEmpty ? [] : Array.from({ length: n }, (_, i) => runRow(i * 6 + k)));
    return { needs: isEmpty ? [] : [{ why: 'AwaitingApproval', run: { ...runRow(0), namespace: 'prod', name: '7f3c' } }, { why: 'Indeterminate', run: { ...runRow(10), namespace: 'prod', name: 'failed' } }, { why: 'Drifted', layer: layerRow(11) }], running: of(3, 1), queue: of(4, 5), finished: of(5, 3) };
  }
  if (method === 'POST') return waiting;
  if (path.endsWith('/changes')) return changes(path.includes('big') ? 50_000 : 312).map((it) => JSON.stringify(it)).join('\n');
  if (path.endsWith('/plan')) return log(60);
  if (path.includes('/log/')) return log(400);
  if (path.endsWith('/journal')) return journal.slice(Number(query.get('offset') ?? 0));
  if (path.includes('/runs/')) return { failed, closed: failed, applying, queued }[path.split('/').at(-1)] ?? waiting;
  if (path.endsWith('/outputs')) return outputs;
  if (path.includes('/states/')) return state.fail === 'viewer' ? [403, { status: 403, reason: 'Forbidden', detail: 'states.read.pawl.run "network-prod-4k2j" is forbidden: User "carol" cannot get resource "states" in API group "read.pawl.run" in the namespace "prod"' }] : statePage;
  if (/^namespaces\/[^/]+$/.test(path)) return { name: 'prod', frozen: state.fail === 'viewer' ? null : true, acts: [act('freeze', 'Freeze', { danger: true }), act('unfreeze', 'Unfreeze', { danger: true, kubectl: 'kubectl annotate --overwrite namespace/prod pawl.run/freeze-' })].slice(state.fail === 'viewer' ? 0 : 1) };
  if (path.includes('/layers/')) return layerPage;
  if (path.includes('/repositories/')) return repositoryPage;
  return [404, { status: 404, reason: 'NotFound', detail: 'not found' }];
}
const me = { user: 'system:serviceaccount:team-1:carol', groups: ['system:serviceaccounts', 'system:authenticated'], method: 'Token', expiresAt: ago(-900), url: 'http://127.0.0.1:8444', version: '0.1.0' };

/** Streams of the page, and how many are open. */
export const streams = new Set();
/** A log of this many bytes: the same mebibyte, with an error in the first. */
export const BIG = 1 << 30;
const piece = Buffer.from(log(40_000).repeat(2)).subarray(0, 1 << 20);
/** Its first line is like no other. */
const begin = Buffer.concat([Buffer.from('the beginning\n'), piece.subarray(14)]);
/** How many bytes of it were sent. */
export const sent = { bytes: 0 };
function bigLog(response, offset) {
  response.writeHead(200, { 'content-type': 'text/plain', 'pawl-log-length': BIG });
  let at = offset;
  const write = () => {
    while (at < BIG && !response.destroyed) {
      const next = (at < piece.length ? begin : piece).subarray(at % piece.length);
      at += next.length;
      sent.bytes += next.length;
      if (!response.write(next)) return void response.once('drain', write);
    }
    response.end();
  };
  write();
}

export const server = createServer((request, response) => {
  const url = new URL(request.url, 'http://x');
  response.setHeader('content-security-policy', CSP);
  const path = url.pathname.slice(BASE.length);
  if (path.startsWith('/api/v1/stream')) {
    if (!state.isIn) return void response.writeHead(401).end();
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    streams.add(response);
    response.on('close', () => streams.delete(response));
    return void response.write(`id: ${url.searchParams.get('after') ?? '1-1'}\nevent: open\ndata: {}\n\n`);
  }
  if (path === '/api/v1/state') return Object.assign(state, { isIn: true, fail: '' }, JSON.parse(url.searchParams.get('set'))), void response.end();
  if (path.startsWith('/api/v1/') && /\/(big|closed)\/log\/apply/.test(path)) return bigLog(response, Number(url.searchParams.get('offset')));
  if (path.startsWith('/api/v1/')) {
    const found = answer(path.slice(8), url.searchParams, request.method);
    const [status, body] = Array.isArray(found) ? found : [200, found];
    response.writeHead(status, { 'content-type': typeof body === 'string' ? 'text/plain' : 'application/json' });
    return void response.end(typeof body === 'string' ? body : JSON.stringify(body));
  }
  if (path.startsWith('/assets/')) {
    response.setHeader('content-type', path.endsWith('.css') ? 'text/css' : 'text/javascript');
    return void response.end(readFileSync(new URL(`.${path}`, dist)));
  }
  response.setHeader('content-type', 'text/html; charset=utf-8');
  response.end(readFileSync(new URL('index.html', dist), 'utf8').replaceAll('"./assets/', `"${BASE}/assets/`).replace('name="pawl-base" content=""', `name="pawl-base" content="${BASE}"`));
});

if (import.meta.url === `file://${process.argv[1]}`) server.listen(5180, '127.0.0.1', () => console.log(`http://127.0.0.1:5180${BASE}/`));
