// Fetches a page with what Node has built in.
const response = await fetch(process.argv[2]);
console.log(await response.text());
process.exitCode = response.ok ? 0 : 1;
