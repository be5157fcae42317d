// What OpenAI's client for JavaScript makes of the gateway's answers, as one JSON object.
// Arguments: base URL, a right key, a wrong key, the model.
import OpenAI from "openai";

const [baseURL, rightKey, wrongKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: rightKey, maxRetries: 0 });
const stranger = new OpenAI({ baseURL, apiKey: wrongKey, maxRetries: 0 });
const input = ["tree", "a river and a house"];

const vectors = (answer) => answer.data.map((row) => row.embedding);

async function failure(call) {
  try {
    await call();
    return null;
  } catch (error) {
    const { name } = error.constructor;
    return { name, status: error.status, code: error.code, param: error.param, message: error.message };
  }
}

const byDefault = await client.embeddings.create({ model, input });
const result = {
  default: vectors(byDefault),
  float: vectors(await client.embeddings.create({ model, input, encoding_format: "float" })),
  dimensions: vectors(await client.embeddings.create({ model, input, dimensions: 8 })).map((row) => row.length),
  tokens: byDefault.usage.prompt_tokens,
  models: (await client.models.list()).data.map((served) => served.id),
  retrieved: (await client.models.retrieve(model)).id,
  wrongKey: await failure(() => stranger.embeddings.create({ model, input })),
  empty: await failure(() => client.embeddings.create({ model, input: ["tree", ""] })),
  unknown: await failure(() => client.embeddings.create({ model: "other", input })),
};
console.log(JSON.stringify(result));
