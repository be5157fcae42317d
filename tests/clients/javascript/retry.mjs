// Asks once, with the client's default retries; prints the length of the vector and the seconds that it took.
// Arguments: base URL, the model.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const started = performance.now();
const answer = await new OpenAI({ baseURL, apiKey: "unused" }).embeddings.create({ model, input: "tree" });
console.log(JSON.stringify({ length: answer.data[0].embedding.length, seconds: (performance.now() - started) / 1000 }));
