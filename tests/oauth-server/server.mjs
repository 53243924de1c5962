// An OAuth server for the tests: the unchanged oidc-provider, a simulated person who consents to every request, and an
// API that requires the tokens of the provider.
//
// This file adds these paths: `/person` opens the provider's pages like a browser, `/signed-in` returns the tokens of a
// client for which the person has signed in, `/api/…` answers requests with a valid access token, and `/control` changes
// the behaviour of the token endpoint and returns what the endpoint has recorded.

import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { Provider } from 'oidc-provider';

const server = createServer();
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const origin = `http://127.0.0.1:${server.address().port}`;

const state = {
  access_token_s: 3600,
  // The algorithm of access tokens that are JWTs. Access tokens are opaque if it is null.
  access_token_alg: null,
  // Claims that replace those of access tokens that are JWTs.
  access_token_claims: {},
  // The time, in milliseconds, by which each answer of the token endpoint is delayed after it is complete.
  hold_ms: 0,
  // `{ status, body }` replaces the next `answers_left` answers of the token endpoint.
  answer: null,
  answers_left: 0,
  // Members that are set in the body of each successful answer. A member with the value null is removed from the body.
  over: {},
  // The same for the answers of the device authorization endpoint.
  device_over: {},
  grants: {},
  errors: [],
  // The values of the parameter `resource` of requests to the token endpoint.
  resources: [],
  seen: [],
};

const redirectUri = 'http://127.0.0.1/api/oauth/callback';
const grants = ['authorization_code', 'refresh_token', 'client_credentials', 'urn:ietf:params:oauth:grant-type:device_code'];
const client = (client_id, more) => ({
  client_id,
  application_type: 'native',
  grant_types: grants,
  redirect_uris: [redirectUri],
  response_types: ['code'],
  scope: 'openid offline_access repo',
  ...more,
});
const secret = 'client-secret-canary-6f1d';

const key = (alg, type, options) => {
  const { privateKey } = generateKeyPairSync(type, options);
  return { ...privateKey.export({ format: 'jwk' }), alg, use: 'sig', kid: alg };
};

const provider = new Provider(origin, {
  jwks: { keys: [key('RS256', 'rsa', { modulusLength: 2048 }), key('ES256', 'ec', { namedCurve: 'P-256' })] },
  clients: [
    client('by-header', { client_secret: secret, token_endpoint_auth_method: 'client_secret_basic' }),
    client('by-body', { client_secret: secret, token_endpoint_auth_method: 'client_secret_post' }),
    client('public', { token_endpoint_auth_method: 'none', grant_types: grants.filter((grant) => grant !== 'client_credentials') }),
    // Asks for scopes of resources, which are not scopes of the provider.
    client('mcp', { token_endpoint_auth_method: 'none', grant_types: ['authorization_code'], scope: undefined }),
  ],
  scopes: ['openid', 'offline_access', 'repo'],
  pkce: { required: () => true },
  rotateRefreshToken: true,
  issueRefreshToken: async () => true,
  ttl: {
    AccessToken: () => state.access_token_s,
    ClientCredentials: () => state.access_token_s,
    AuthorizationCode: 60,
    DeviceCode: 600,
    Grant: 86400,
    IdToken: 3600,
    Interaction: 3600,
    RefreshToken: 86400,
    Session: 86400,
  },
  cookies: { keys: ['only for tests'] },
  features: {
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    devInteractions: { enabled: false },
    // Issues tokens for every resource that a client names (RFC 8707).
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: async (_, resource) => ({
        scope: 'openid offline_access repo mcp:tools',
        audience: resource,
        accessTokenTTL: state.access_token_s,
        accessTokenFormat: state.access_token_alg ? 'jwt' : 'opaque',
        jwt: state.access_token_alg ? { sign: { alg: state.access_token_alg } } : undefined,
      }),
      useGrantedResource: async () => true,
    },
  },
  formats: {
    customizers: { jwt: async (_ctx, _token, { payload }) => Object.assign(payload, state.access_token_claims) },
  },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  findAccount: async (_, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  // Consents to every scope that a client requests.
  async loadExistingGrant(ctx) {
    const { client: { clientId }, session: { accountId }, params, result } = ctx.oidc;
    const held = result?.consent?.grantId || ctx.oidc.session.grantIdFor(clientId);
    const grant = held ? await ctx.oidc.provider.Grant.find(held) : new ctx.oidc.provider.Grant({ clientId, accountId });
    grant.addOIDCScope(params.scope || 'openid');
    for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, params.scope || 'openid');
    await grant.save();
    return grant;
  },
});

provider.use(async (ctx, next) => {
  await next();
  if (ctx.path !== '/token' && ctx.path !== '/device/auth') return;
  const { body } = ctx.oidc ?? {};
  for (const name of ['code', 'code_verifier', 'device_code', 'refresh_token']) if (body?.[name]) state.seen.push(body[name]);
  for (const name of ['access_token', 'refresh_token', 'device_code']) if (ctx.body?.[name]) state.seen.push(ctx.body[name]);
  const over = ctx.path === '/token' ? state.over : state.device_over;
  if (ctx.status === 200) {
    ctx.body = Object.fromEntries(Object.entries({ ...ctx.body, ...over }).filter(([, value]) => value !== null));
  }
  if (ctx.path !== '/token') return;
  if (body?.resource) state.resources.push(body.resource);
  if (state.answers_left > 0) {
    state.answers_left -= 1;
    ctx.status = state.answer.status;
    ctx.body = state.answer.body;
  }
  await sleep(state.hold_ms);
});
provider.on('grant.success', (ctx) => {
  const { grant_type: grant } = ctx.oidc.params;
  state.grants[grant] = (state.grants[grant] ?? 0) + 1;
});
provider.on('grant.error', (ctx, error) => state.errors.push(`${ctx.oidc?.params?.grant_type}: ${error.error}`));

const tokens = [];
provider.on('access_token.saved', (token) => tokens.push(token));
provider.on('client_credentials.saved', (token) => tokens.push(token));
const refreshTokens = [];
provider.on('refresh_token.saved', (token) => refreshTokens.push(token));

// Behaves like a browser: keeps cookies, follows redirects and submits each form.
async function browse(url, form) {
  const cookies = new Map();
  for (let step = 0; step < 20; step += 1) {
    if (!url.startsWith(origin)) return { url };
    const answer = await fetch(url, {
      method: form ? 'POST' : 'GET',
      body: form,
      headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
      redirect: 'manual',
    });
    for (const cookie of answer.headers.getSetCookie()) {
      const [pair] = cookie.split(';');
      const at = pair.indexOf('=');
      if (pair.slice(at + 1)) cookies.set(pair.slice(0, at), pair.slice(at + 1));
      else cookies.delete(pair.slice(0, at));
    }
    form = undefined;
    if (answer.headers.has('location')) {
      url = new URL(answer.headers.get('location'), url).href;
      continue;
    }
    const html = await answer.text();
    const action = html.match(/<form[^>]*action="([^"]+)"/);
    if (!action || step > 15) return { status: answer.status, html };
    form = new URLSearchParams();
    for (const [, name, value] of html.matchAll(/<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"/g)) form.append(name, value);
    if (html.includes('name="confirm"') || html.includes('op.deviceConfirmForm')) form.set('confirm', 'yes');
    url = new URL(action[1].replaceAll('&amp;', '&'), url).href;
  }
  throw new Error('too many steps');
}

// Signs the person in for the client `mcp`, which asks for a scope of a resource.
async function signedIn({ resource, scope }) {
  const code_verifier = randomBytes(32).toString('base64url');
  const code_challenge = createHash('sha256').update(code_verifier).digest('base64url');
  const common = { client_id: 'mcp', redirect_uri: redirectUri, resource };
  const query = new URLSearchParams({ ...common, scope, response_type: 'code', code_challenge, code_challenge_method: 'S256' });
  const { url } = await browse(`${origin}/auth?${query}`);
  const code = new URL(url).searchParams.get('code');
  const body = new URLSearchParams({ ...common, grant_type: 'authorization_code', code, code_verifier });
  return (await fetch(`${origin}/token`, { method: 'POST', body })).json();
}

async function json(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString() || '{}');
}

function answer(response, status, body) {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

async function ours(request, response, url) {
  if (url.pathname.startsWith('/interaction/')) {
    const { prompt } = await provider.interactionDetails(request, response);
    const result = prompt.name === 'login' ? { login: { accountId: 'person' } } : { consent: {} };
    return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
  }
  if (url.pathname === '/person') {
    const { url: start } = await json(request);
    return answer(response, 200, await browse(start));
  }
  if (url.pathname === '/signed-in') return answer(response, 200, await signedIn(await json(request)));
  if (url.pathname === '/control') {
    const { revoke_access: access, revoke_refresh: refresh, ...changes } = await json(request);
    if (access) await Promise.all(tokens.splice(0).map((token) => token.destroy()));
    if (refresh) await Promise.all(refreshTokens.splice(0).map((token) => token.destroy()));
    Object.assign(state, changes);
    return answer(response, 200, { ...state, client_secret: secret });
  }
  const [, token] = /^Bearer (.+)$/.exec(request.headers.authorization ?? '') ?? [];
  const held = token && (await provider.AccessToken.find(token) ?? await provider.ClientCredentials.find(token));
  if (!held || held.isExpired) return answer(response, 401, { message: 'Bad credentials' });
  return answer(response, 200, url.pathname.endsWith('/issues') ? [] : { client: held.clientId, account: held.accountId ?? null });
}

const callback = provider.callback();
server.on('request', (request, response) => {
  const url = new URL(request.url, origin);
  const isOurs = ['/interaction/', '/person', '/signed-in', '/control', '/api/'].some((path) => url.pathname.startsWith(path));
  if (!isOurs) return callback(request, response);
  return ours(request, response, url).catch((error) => answer(response, 500, { message: String(error) }));
});
console.log(`listening on ${origin}`);
// The standard input ends when the process that started this server ends.
process.stdin.resume().on('end', () => process.exit(0));
