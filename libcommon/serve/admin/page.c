/* page.c - the web page at /: state, models, tokens a second, a prompt.
 *
 * Everything is in this file, nothing is fetched from elsewhere, and the Content-Security-Policy
 * allows only this script and this style, by their hashes. */
#include <string.h>

#include <openssl/evp.h>

#include "libcommon/base/sha256.h"
#include "libcommon/serve/internal.h"

static const char style[] =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}textarea,select,button,#answer{background:#222;color:#ddd;border-color:#555}}"
    "h1{font-size:1.3rem;margin:0}dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{opacity:.65}dd{margin:0;font-variant-numeric:tabular-nums}"
    "textarea{width:100%;box-sizing:border-box;font:inherit;min-height:5rem}textarea,select,button,#answer{border:1px solid #bbb;border-radius:.4rem;padding:.5rem}"
    "button{font:inherit;cursor:pointer}#answer{white-space:pre-wrap;min-height:3rem;margin-top:.8rem;overflow-wrap:anywhere}.row{display:flex;gap:.5rem;margin-top:.5rem;align-items:center}";

static const char script[] =
    "'use strict';const $=i=>document.getElementById(i);let stop=null;"
    "function stats(){const w=new WebSocket((location.protocol==='https:'?'wss://':'ws://')+location.host+'/ws/stats');"
    "w.onmessage=e=>{const m=JSON.parse(e.data),s=m.system,a=m.analytics;$('state').textContent=s.models_loaded.length?'ready':'no model is loaded';"
    "$('rate').textContent=s.tokens_per_sec.toFixed(1)+' tokens/s';$('active').textContent=s.active_requests+' now, '+a.total_requests+' since the start';"
    "$('memory').textContent=s.process_memory_gb.toFixed(2)+' GB';const have=[...$('model').options].map(o=>o.value).join('\\n'),"
    "want=s.models_loaded.map(x=>x.id);if(have!==want.join('\\n')){$('model').replaceChildren(...want.map(x=>{const o=document.createElement('option');o.value=x;o.textContent=x;return o}))}};"
    "w.onclose=()=>{$('state').textContent='no connection';setTimeout(stats,2000)}}"
    "async function ask(){if(stop){stop.abort();return}const text=$('prompt').value;if(!text)return;stop=new AbortController();$('send').textContent='Stop';$('answer').textContent='';"
    "try{const r=await fetch('/v1/chat/completions',{method:'POST',signal:stop.signal,headers:{'Content-Type':'application/json'},"
    "body:JSON.stringify({model:$('model').value||'default',stream:true,messages:[{role:'user',content:text}]})});"
    "if(!r.ok){$('answer').textContent=(await r.json()).detail;return}const d=r.body.pipeThrough(new TextDecoderStream()).getReader();let rest='';"
    "for(;;){const{value,done}=await d.read();if(done)break;rest+=value;let i;while((i=rest.indexOf('\\n\\n'))>=0){const line=rest.slice(0,i);rest=rest.slice(i+2);"
    "if(!line.startsWith('data: ')||line==='data: [DONE]')continue;const m=JSON.parse(line.slice(6));if(m.error){$('answer').textContent+='\\n'+m.error.message;continue}"
    "const c=m.choices[0];if(c)$('answer').textContent+=(c.delta.reasoning_content||'')+(c.delta.content||'')}}}"
    "catch(e){if(e.name!=='AbortError')$('answer').textContent+='\\n'+e.message}finally{stop=null;$('send').textContent='Send'}}"
    "$('send').onclick=ask;$('prompt').onkeydown=e=>{if(e.key==='Enter'&&!e.shiftKey){e.preventDefault();ask()}};stats();";

static const char head[] = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>zse-serve</title><style>";
static const char body[] =
    "</style></head><body><h1>zse-serve " ZSE_VERSION
    "</h1><dl><dt>state</dt><dd id=\"state\">connecting</dd><dt>speed</dt><dd id=\"rate\">-</dd>"
    "<dt>requests</dt><dd id=\"active\">-</dd><dt>memory</dt><dd id=\"memory\">-</dd></dl>"
    "<label for=\"prompt\">Prompt</label><textarea id=\"prompt\" autofocus></textarea><div class=\"row\"><select id=\"model\" aria-label=\"Model\"></select>"
    "<button id=\"send\">Send</button></div><div id=\"answer\" role=\"log\" aria-live=\"polite\"></div>"
    "<p><a href=\"/openapi.json\">API</a> &middot; <a href=\"/metrics\">metrics</a></p><script>";
static const char tail[] = "</script></body></html>\n";

static void add_hash(struct buf *out, const char *text)
{
    uint8_t digest[SHA256_SIZE];
    char base64[64];
    sha256_of(text, strlen(text), digest);
    EVP_EncodeBlock((unsigned char *)base64, digest, sizeof digest);
    buf_printf(out, "'sha256-%s'", base64);
}

void page_reply(struct server *s, struct conn *c)
{
    struct buf policy = { 0 }, page = { 0 };
    buf_str(&policy, "default-src 'none'; script-src ");
    add_hash(&policy, script);
    buf_str(&policy, "; style-src ");
    add_hash(&policy, style);
    buf_str(&policy, "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    buf_add(&policy, "", 1);
    buf_str(&page, head);
    buf_str(&page, style);
    buf_str(&page, body);
    buf_str(&page, script);
    buf_str(&page, tail);
    if (policy.failed || page.failed) {
        reply_refusal(s, c, 503, NULL, "out of memory");
    } else {
        conn_add_header(c, "Content-Security-Policy", policy.data);
        conn_add_header(c, "Referrer-Policy", "no-referrer");
        conn_add_header(c, "Cache-Control", "no-cache");
        conn_add_header(c, "Vary", "Accept");
        metrics_count(&s->metrics, conn_route(c), 200);
        conn_reply(c, 200, "text/html; charset=utf-8", page.data, page.size);
    }
    buf_release(&policy);
    buf_release(&page);
}
