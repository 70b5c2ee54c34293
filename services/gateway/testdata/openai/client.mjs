// Speaks to Butler with the official client; the test starts it with BASE_URL, API_KEY and CONVERSATION set.
import assert from "node:assert/strict";
import OpenAI from "openai";

const options = { baseURL: process.env.BASE_URL + "/v1", apiKey: process.env.API_KEY, maxRetries: 0 };
const client = new OpenAI(options);
const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: [{ type: "text", text: "hel" }, { type: "text", text: "lo" }] },
];

async function read(stream) {
  let text = "";
  let usage = null;
  let finish = null;
  const roles = [];
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    const choice = chunk.choices[0];
    if (choice?.delta.role) roles.push(choice.delta.role);
    text += choice?.delta.content ?? "";
    finish = choice?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.deepEqual(roles, ["assistant"]);
  return { text, usage, finish };
}

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ["butler", "fake", "fake/large"]);
assert.equal((await client.models.retrieve("fake")).id, "fake");

const whole = await client.chat.completions.create({ model: "fake", messages });
assert.equal(whole.choices[0].message.content, "You said: hello");
assert.equal(whole.choices[0].finish_reason, "stop");
assert.equal(whole.model, "fake");
assert.deepEqual(whole.usage, { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 });

const pieces = await read(
  await client.chat.completions.create({ model: "fake", messages, stream: true, stream_options: { include_usage: true } }),
);
assert.deepEqual(pieces, { text: "You said: hello", usage: whole.usage, finish: "stop" });

// In a conversation: by its number, and by a name.
for (const session of [process.env.CONVERSATION, "from node"]) {
  const inSession = new OpenAI({ ...options, defaultHeaders: { "X-Butler-Session": session } });
  const body = { model: "fake", messages: [{ role: "user", content: "in " + session }] };
  const first = await inSession.chat.completions.create(body);
  assert.equal(first.choices[0].message.content, "You said: in " + session);
  const streamed = await read(await inSession.chat.completions.create({ ...body, stream: true }));
  assert.equal(streamed.text, "You said: in " + session);
}

// Errors are the client's own classes.
const refused = await client.chat.completions
  .create({ model: "fake", messages, tools: [{ type: "function", function: { name: "f" } }] })
  .catch((e) => e);
assert.ok(refused instanceof OpenAI.BadRequestError, String(refused));
assert.equal(refused.param, "tools");
assert.match(refused.message, /tools/);

const stranger = await new OpenAI({ ...options, apiKey: "wrong" }).models.list().catch((e) => e);
assert.ok(stranger instanceof OpenAI.AuthenticationError, String(stranger));

const none = await client.chat.completions.create({ model: "fake", messages: [{ role: "user", content: "fail at once" }] }).catch((e) => e);
assert.ok(none instanceof OpenAI.APIError && none.status === 503, String(none));

const broken = await client.chat.completions.create({ model: "fake", messages: [{ role: "user", content: "break off" }], stream: true });
const broke = await read(broken).then(
  () => null,
  (e) => e,
);
assert.ok(broke instanceof OpenAI.APIError, "a stream that breaks off is an error: " + broke);

console.log("ok");
