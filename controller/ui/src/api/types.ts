// Names for the types of the OpenAPI description.
import type { components } from './schema';

type Schemas = components['schemas'];
export type Act = Schemas['Act'];
export type ActRequest = Partial<Schemas['Request']>;
export type ApplyEvent = Schemas['ApplyEvent'];
export type Attribute = Schemas['Attribute'];
export type Change = Schemas['Change'];
export type Delivery = Schemas['Delivery'];
export type Inbox = Schemas['Inbox'];
export type LayerPage = Schemas['LayerPage'];
export type LayerRow = Schemas['LayerRow'];
export type Me = Schemas['Me'];
export type NamespacePage = Schemas['NamespacePage'];
export type Outputs = Schemas['StateOutputs'];
export type Problem = Schemas['Problem'];
export type RepositoryPage = Schemas['RepositoryPage'];
export type RepositoryRow = Schemas['RepositoryRow'];
export type RowEvent = Schemas['RowEvent'];
export type RunPage = Schemas['RunPage'] & { run: Run };
export type RunRow = Schemas['RunRow'];
export type Ways = Schemas['Ways'];
export type Run = Schemas['TerraformRun'] & { metadata: Metadata };
/** The part of an object's metadata that pages read; the description leaves it to Kubernetes. */
export interface Metadata {
  name: string;
  namespace: string;
  creationTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
}
export type StatePage = Schemas['StatePage'];
export type Facet = Schemas['Count'];
export interface Rows<T> {
  items: T[];
  total: number;
  facets: Record<string, Facet[]>;
  next?: string | null;
  sequence: string;
}
