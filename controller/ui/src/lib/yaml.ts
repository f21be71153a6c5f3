// The rule that a refusal of the API server lacks, as YAML.

/** A word of a shell. */
export function quoted(word: string): string {
  return /^[A-Za-z0-9@%_+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** The line of an act with the comment that was typed, as a word of the shell or of the JSON in one. */
export function filled(line: string, comment: string): string {
  if (!comment) return line;
  const json = JSON.stringify(comment).replaceAll("'", `'\\''`);
  return line.replace('=REASON', () => `=${quoted(comment)}`).replace('"REASON"', () => json);
}

/** The role that a message such as `User "x" cannot get resource "r/s" in API group "g" in the namespace "n"` asks for. */
export function missingRule(message: string): string | undefined {
  const found = /cannot (\w+) resource "([\w./-]+)" in API group "([\w.-]*)"(?: in the namespace "([\w.-]+)")?/.exec(message);
  if (!found) return undefined;
  const [, verb, resource, group, namespace] = found;
  return [
    'apiVersion: rbac.authorization.k8s.io/v1',
    `kind: ${namespace ? 'Role' : 'ClusterRole'}`,
    `metadata: {name: pawl-extra${namespace ? `, namespace: ${namespace}` : ''}}`,
    'rules:',
    `- {apiGroups: ["${group}"], resources: ["${resource}"], verbs: ["${verb}"]}`,
  ].join('\n');
}
