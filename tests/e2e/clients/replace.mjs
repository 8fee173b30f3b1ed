// Read-modify-replace with the official JavaScript client; in and out as replace.py says. Times are Date objects here.

import { readFileSync } from "node:fs";
import { KubeConfig, KubernetesObjectApi } from "@kubernetes/client-node";

const TRIES = 50; // a controller may write the same object at the same time
const STAMP = "example.com/stamp";

async function attempt(api, kind, stamp) {
  const apiVersion = kind.group ? `${kind.group}/${kind.version}` : kind.version;
  const { items } = await api.list(apiVersion, kind.kind);
  const { name, namespace } = items[0].metadata;
  for (let number = 0; number < TRIES; number++) {
    try {
      const obj = await api.read({ apiVersion, kind: kind.kind, metadata: { name, namespace } });
      obj.metadata.annotations = { ...obj.metadata.annotations, [STAMP]: stamp };
      const replaced = await api.replace(obj);
      return replaced.metadata.annotations?.[STAMP] === stamp ? "ok" : "the change was lost";
    } catch (error) {
      if (error.code !== 409) return `${error.code}: ${error.body ?? error}`;
    }
  }
  return "always a conflict";
}

const asked = JSON.parse(readFileSync(0, "utf8"));
const config = new KubeConfig();
config.loadFromDefault();
const api = KubernetesObjectApi.makeApiClient(config);
const results = {};
for (const kind of asked.kinds) results[kind.plural] = await attempt(api, kind, asked.stamp).catch((error) => String(error));
process.stdout.write(JSON.stringify(results));
