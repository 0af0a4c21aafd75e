// The Vercel AI SDK's own loop: a streamed answer that calls a tool, and the one after it.
import { writeFile } from 'node:fs/promises';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [baseURL, model, prompt] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: 'radixserve', baseURL, apiKey: 'none', includeUsage: true,
});
const result = streamText({
  model: provider(model),
  prompt,
  stopWhen: stepCountIs(3),
  maxRetries: 0,
  onError: ({ error }) => { console.error(error); process.exitCode = 1; },
  tools: {
    write_file: tool({
      description: 'Writes text into a file.',
      inputSchema: z.object({ path: z.string(), text: z.string() }),
      execute: async ({ path, text }) => { await writeFile(path, text); return 'written'; },
    }),
  },
});
for await (const text of result.textStream) process.stdout.write(text);
for (const step of await result.steps) console.log(JSON.stringify(step.usage));
