// The lines of an image, with fetch (Node 18 or newer; the same in a browser): node read.mjs URL IMAGE
import { readFile } from 'node:fs/promises';

const [url, image] = process.argv.slice(2);

async function read(body) {
  for (let tries = 1; ; tries += 1) {
    const response = await fetch(`${url}/v1/ocr`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/octet-stream', 'X-Request-Timeout': '60' },
      body,
      signal: AbortSignal.timeout(61_000),
    });
    if (response.ok) return response.json();
    const problem = await response.json();
    const busy = response.status === 429 || response.status === 503;
    if (!busy || tries === 5) throw new Error(`${problem.title}: ${problem.detail} ${problem.remedy ?? ''}`);
    const seconds = Number(response.headers.get('Retry-After') ?? 1);
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

const { pages } = await read(await readFile(image));
for (const line of pages[0].lines) console.log(line.confidence.toFixed(2), line.text);
