# embed.bats - embedding models and rerankers: converted, shown, refused where text is wanted, and
# served at /v1/embeddings, /v1/rerank and /v1/score.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR kind
  for kind in embed bare rerank labels broken; do python3 tests/serve/make_encoder.py "$T/$kind" "$kind"; done
  for kind in embed bare rerank; do zse-convert "$T/$kind" -q f32 -o "$T/$kind.zse" 2>"$T/$kind.err" >/dev/null; done
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  mkfifo "$T/pipe"
  zse-serve "$T/embed.zse" "$T/bare.zse" "$T/rerank.zse" "$T/tiny.zse" --port 0 >"$T/pipe" 2>"$T/serve.err" 3>&- &
  export MAIN_PID=$! URL
  read -r _ _ URL <"$T/pipe"
  await listens "$URL"
}
teardown_file() {
  kill -TERM "$MAIN_PID" 2>/dev/null
  while kill -0 "$MAIN_PID" 2>/dev/null; do sleep 0.05; done
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }

post() { curl -s "$URL/v1/$1" -d "$2"; }
reason() { post "$1" "$2" | jq -r .error.message; }

@test "zse-convert keeps what the files of sentence-transformers say, and refuses what it cannot compute" {
  [[ $(cat "$T/embed.err") == *"2 tensors of heads that only training used are skipped"* ]]
  [ "$(zse-info "$T/embed.zse" --json | jq -c '.embedding | [.dimensions, .pooling, .normalized, .max_tokens, .prompts.query, .scores]')" = '[32,"mean",true,24,"query: ",false]' ]
  [[ $(zse-info "$T/embed.zse") == *"vectors of texts: an embedding model, 32 dimensions, pooling mean"* ]]
  [[ $(zse-info "$T/rerank.zse") == *"scores of pairs of texts: a reranker"* ]]
  run -1 zse-convert "$T/broken" -o "$T/no.zse"
  [[ $output == *'module 2 of type "sentence_transformers.models.WordWeights" is not supported'* ]]
  run -1 zse-convert "$T/labels" -o "$T/no.zse"
  [[ $output == *"a classifier with 2 labels, expected one"* ]]
  cp -r "$T/embed" "$T/other"
  sed -i 's/"pooling_mode_mean_tokens"/"pooling_mode_max_tokens"/' "$T/other/1_Pooling/config.json"
  run -1 zse-convert "$T/other" -o "$T/no.zse"
  [[ $output == *"pooling_mode_max_tokens"*"expected one: mean, cls or lasttoken"* ]]
  rm -r "$T/other/1_Pooling"
  run -1 zse-convert "$T/other" -o "$T/no.zse"
  [[ $output == *"1_Pooling/config.json is missing"* ]]
}

@test "zse-chat and zse-bench refuse embedding models, and so does the server for requests that generate text" {
  run -1 zse-chat "$T/embed.zse" -p hello
  [[ $output == *"an embedding model: it makes vectors of texts; zse-serve serves it at /v1/embeddings"* ]]
  run -1 zse-bench "$T/rerank.zse" -p 4 -n 4
  [[ $output == *"a reranker: it scores pairs of texts; zse-serve serves it at /v1/rerank"* ]]
  [[ $(reason chat/completions '{"model":"embed","messages":[{"role":"user","content":"a"}]}') == *"embed makes no text: use /v1/embeddings"* ]]
  [[ $(reason completions '{"model":"rerank","prompt":"a"}') == *"rerank makes no text: use /v1/rerank or /v1/score"* ]]
  [[ $(reason embeddings '{"model":"rerank","input":"a"}') == *"use /v1/rerank or /v1/score"* ]]
}

@test "vectors have length 1 and are those of batches; prompts, dimensions and base64 are supported" {
  post embeddings '{"model":"bare","input":["the cat sat","a dog"]}' >"$T/bare.json"
  post embeddings '{"model":"embed","input":["the cat sat","a dog"]}' >"$T/embed.json"
  python3 - "$T" <<'EOT'
import json, math, struct, sys
t = sys.argv[1]
raw = open(f'{t}/embed/2_Dense/model.safetensors', 'rb').read()
n = struct.unpack('<Q', raw[:8])[0]
x = struct.unpack(f'<{(len(raw) - 8 - n) // 4}f', raw[8 + n:])
w, bias = [x[i * 64:i * 64 + 64] for i in range(32)], x[2048:]
for bare, made in zip(*(json.load(open(f'{t}/{k}.json'))['data'] for k in ('bare', 'embed'))):
    y = [math.tanh(sum(a * b for a, b in zip(row, bare['embedding'])) + c) for row, c in zip(w, bias)]
    assert abs(math.hypot(*bare['embedding']) - 1) > 0.1, 'a model without a normalization is not normalized'
    assert max(abs(a / math.hypot(*y) - b) for a, b in zip(y, made['embedding'])) < 1e-5
EOT
  local one two
  one=$(post embeddings '{"model":"embed","input":"the cat sat"}' | jq -c '.data[0].embedding')
  [ "$one" = "$(jq -c '.data[0].embedding' "$T/embed.json")" ]          # the batch changes no bit
  one=$(post embeddings '{"model":"embed","input":"cat","input_type":"query"}' | jq -c '.data[0].embedding')
  two=$(post embeddings '{"model":"embed","input":"query: cat"}' | jq -c '.data[0].embedding')
  [ "$one" = "$two" ]
  [ "$(post embeddings '{"model":"embed","input":"cat","prompt_name":"query"}' | jq -c '.data[0].embedding')" = "$two" ]
  [ "$(post embeddings '{"model":"embed","input":"cat","input_type":"document"}' | jq -c '.data[0].embedding')" != "$two" ]
  [[ $(reason embeddings '{"model":"embed","input":"cat","prompt_name":"web"}') == *"'web' is no prompt of this model, which has: query"* ]]
  [[ $(reason embeddings '{"model":"embed","input":"cat","input_type":"web"}') == *"expected query or document"* ]]
  [ "$(post embeddings '{"model":"embed","input":"cat","dimensions":8}' | jq '.data[0].embedding | [length, (map(. * .) | add * 1000 | round)]' -c)" = "[8,1000]" ]
  [[ $(reason embeddings '{"model":"embed","input":"cat","dimensions":33}') == *"not in the range 1 to 32"* ]]
  [ "$(post embeddings '{"model":"embed","input":"cat","encoding_format":"base64"}' | jq -r '.data[0].embedding' | base64 -d | wc -c)" = 128 ]
}

@test "2048 texts in one request, more than may wait, get the vectors of single texts; a further one is refused" {
  local URL PID log=$BATS_TEST_TMPDIR/log
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  zse-serve "$T/embed.zse" --port 0 --max-queue 3 --max-seqs 4 >"$BATS_TEST_TMPDIR/pipe" 2>"$log" 3>&- &
  PID=$!
  read -r _ _ URL <"$BATS_TEST_TMPDIR/pipe"
  jq -nc '{model: "embed", input: [range(2048) | ["cat", "the dog", "a cat sat"][. % 3]]}' >"$BATS_TEST_TMPDIR/body"
  curl -s "$URL/v1/embeddings" -d @"$BATS_TEST_TMPDIR/body" >"$BATS_TEST_TMPDIR/all"
  [ "$(jq -c '[.data[].index] == [range(2048)]' "$BATS_TEST_TMPDIR/all")" = true ]
  [ "$(jq -c '[.data[].embedding] | unique | length' "$BATS_TEST_TMPDIR/all")" = 3 ]
  [ "$(jq -c '.data[2047].embedding' "$BATS_TEST_TMPDIR/all")" = "$(post embeddings '{"model":"embed","input":"the dog"}' | jq -c '.data[0].embedding')" ]
  jq -c '.input += ["cat"]' "$BATS_TEST_TMPDIR/body" >"$BATS_TEST_TMPDIR/more"
  [ "$(curl -s "$URL/v1/embeddings" -d @"$BATS_TEST_TMPDIR/more" | jq -r .error.message)" = "2049 prompts, expected 1 to 2048" ]
  # if a client leaves, its texts that are waiting are dropped
  jq -c '.input |= map(. + " cat dog sat ran far away the a")' "$BATS_TEST_TMPDIR/body" >"$BATS_TEST_TMPDIR/long"
  (set +e; timeout 0.05 curl -s "$URL/v1/embeddings" -d @"$BATS_TEST_TMPDIR/long" >/dev/null; true)
  [ "$(post embeddings '{"model":"embed","input":"cat"}' | jq -c '.data | length')" = 1 ]
  kill -TERM "$PID"
  wait "$PID"
}

@test "a text that is too long is refused, or cut if that is asked for" {
  local long=the
  for _ in $(seq 40); do long+=" cat"; done
  [[ $(reason embeddings "{\"model\":\"embed\",\"input\":\"$long\"}") == *"has 43 tokens, the context of embed is 24 tokens"* ]]
  [ "$(post embeddings "{\"model\":\"embed\",\"input\":\"$long\",\"truncate_prompt_tokens\":-1}" | jq .usage.prompt_tokens)" = 24 ]
  # a text that is cut still ends with [SEP], like a shorter text
  [ "$(post embeddings "{\"model\":\"embed\",\"input\":\"$long\",\"truncate_prompt_tokens\":5}" | jq -c '.data[0].embedding')" = \
    "$(post embeddings '{"model":"embed","input":"the cat cat"}' | jq -c '.data[0].embedding')" ]
  [[ $(reason score "{\"model\":\"rerank\",\"text_1\":\"$long\",\"text_2\":\"$long\"}") == *"both texts have 85 tokens, rerank takes 64"* ]]
  [ "$(post score "{\"model\":\"rerank\",\"text_1\":\"$long\",\"text_2\":\"$long\",\"truncate_prompt_tokens\":-1}" | jq .usage.prompt_tokens)" = 64 ]
}

@test "rerank and score sort and count texts, use token types, work with embedding models, and refuse bad input" {
  post rerank '{"model":"rerank","query":"cat","documents":["a dog ran",{"text":"the cat sat"},"far away"],"top_n":2,"return_documents":true}' >"$T/r"
  [ "$(jq '.results | length' "$T/r")" = 2 ]
  [ "$(jq '[.results[].relevance_score] | . == (sort | reverse) and (.[0] <= 1) and (.[1] >= 0)' "$T/r")" = true ]
  [ "$(jq -r '.results[0] | [.index, .document.text] | @tsv' "$T/r")" = "$(jq -r '.results[0].index' "$T/r")"$'\t'"$(jq -r '["a dog ran","the cat sat","far away"][.results[0].index]' "$T/r")" ]
  # [CLS] cat [SEP] ... [SEP]: 7 + 7 + 6
  jq -e '.usage == {"prompt_tokens":20,"total_tokens":20}' "$T/r"
  post score '{"model":"rerank","text_1":"cat","text_2":["a dog ran","the cat sat","far away"]}' >"$T/s"
  [ "$(jq '.data[1].score' "$T/s")" = "$(post score '{"model":"rerank","text_1":["dog","cat"],"text_2":["a","the cat sat"]}' | jq '.data[1].score')" ]
  [ "$(jq -c '[.data | to_entries | sort_by(-.value.score) | .[:2][].key]' "$T/s")" = "$(jq -c '[.results[].index]' "$T/r")" ]
  # tokens of the second text have another token type, so the order of the two texts matters
  [ "$(post score '{"model":"rerank","text_1":"cat","text_2":"dog"}' | jq '.data[0].score')" != "$(post score '{"model":"rerank","text_1":"dog","text_2":"cat"}' | jq '.data[0].score')" ]
  [ "$(post score '{"model":"embed","text_1":"cat","text_2":["cat","dog ran"]}' | jq -c '[.data[].score | . > 0.999999]')" = "[true,false]" ]
  [[ $(reason rerank '{"model":"rerank","documents":["a"]}') == "query: missing" ]]
  [[ $(reason rerank '{"model":"rerank","query":"a","documents":[]}') == "documents: 0 texts, expected 1 to 1024" ]]
  [[ $(reason rerank '{"model":"rerank","query":"a","documents":[5]}') == "documents: element 0: expected text" ]]
  [[ $(reason rerank '{"model":"rerank","query":["a"],"documents":["b"]}') == "query: found an array, expected text" ]]
  [[ $(reason score '{"model":"rerank","text_1":["a","b"],"text_2":["a","b","c"]}') == *"3 texts for 2 of text_1"* ]]
  local first
  first=$(post rerank '{"model":"tiny","query":"a","documents":["b","c"]}')
  [ "$(jq -r '.results | length' <<<"$first")" = 2 ] || [[ $(jq -r .error.message <<<"$first") == *"nor a language model with ChatML"* ]]
}

@test "zse-serve --embedding-model FILE loads one more model, whose vectors find documents" {
  local log=$BATS_TEST_TMPDIR/log URL PID
  ready() { curl -s "$URL/api/rag/stats" | jq -c '[.embedding.model, .embedding.vectors == .chunks, .embedding.pending]'; }
  run -1 zse-serve "$T/tiny.zse" --port 0 --embedding-model "$T/nowhere.zse"
  [[ $output == *"nowhere.zse: No such file"* ]]
  mkfifo "$log"
  ZSE_HOME=$BATS_TEST_TMPDIR/home zse-serve "$T/tiny.zse" --port 0 --embedding-model "$T/embed.zse" >"$log" 2>"$log.err" 3>&- &
  PID=$!
  read -r _ _ URL <"$log"
  await listens "$URL"
  curl -s "$URL/api/rag/documents" -d '{"name":"far away.md","content":"# home\n\nthe cat sat on a mat"}' >/dev/null
  curl -s "$URL/api/rag/documents" -d '{"name":"b","content":"a dog ran far away"}' >/dev/null
  await says '["embed",true,0]' ready
  # the text that is embedded for a passage begins with the document's name and heading
  curl -s "$URL/api/rag/search" -d '{"query":"cat","mode":"vector","top_k":2}' >"$T/hits"
  local text
  text=$(curl -s "$URL/v1/embeddings" -d '{"model":"embed","input":["query: cat","far away > home\n# home\n\nthe cat sat on a mat"]}' |
    jq '[.data[0].embedding, .data[1].embedding] | transpose | map(.[0] * .[1]) | add')
  jq -e --argjson s "$text" '[.results[] | select(.document_name == "far away.md") | (.similarity - $s | fabs) < 0.01] | all' "$T/hits"
  kill -TERM "$PID" && wait "$PID"
}

@test "zse-serve --rerank-model FILE: a reranker orders the passages of documents" {
  local log=$BATS_TEST_TMPDIR/log URL PID
  search() { curl -s "$URL/api/rag/search" -d "$1"; }
  ready() { curl -s "$URL/api/rag/stats" | jq -c .reranker; }
  run -1 zse-serve "$T/tiny.zse" --port 0 --rerank-model "$T/nowhere.zse"
  [[ $output == *"nowhere.zse: No such file"* ]]
  run -1 zse-serve --port 0 --rerank-model "$T/bare.zse"
  [[ $output == *"--rerank-model: bare is no reranker"* ]]
  mkfifo "$log"
  ZSE_HOME=$BATS_TEST_TMPDIR/home zse-serve "$T/tiny.zse" --port 0 --rerank-model "$T/rerank.zse" >"$log" 2>"$log.err" 3>&- &
  PID=$!
  read -r _ _ URL <"$log"
  await listens "$URL"
  await says '{"model":"rerank","ready":true}' ready
  local i long="the dog"
  for i in {1..80}; do long+=" ran"; done
  for i in "the cat sat" "a dog ran" "far away the cat" "cat cat cat" "$long and a cat"; do
    jq -n --arg t "$i" '{name: $t[:20], content: $t}' | curl -s "$URL/api/rag/documents" -d @- >/dev/null
  done
  search '{"query":"cat dog","top_k":10}' >"$T/hits"
  [ "$(jq -c '[.reranked_by, (.results | length)]' "$T/hits")" = '["rerank",5]' ]
  [ "$(jq '[.results[].score] | . == (sort | reverse) and (unique | length) == 5' "$T/hits")" = true ]
  # the scores are those of /v1/score; a passage that is too long is cut to the model's context
  curl -s "$URL/v1/score" -d '{"model":"rerank","text_1":"cat dog","text_2":["the cat sat","a dog ran","far away the cat","cat cat cat"]}' >"$T/s"
  [ "$(jq '[.data[].score * 1e5 | round] | sort' "$T/s")" = "$(jq '[.results[] | select(.chunk.content | length < 40) | .score * 1e5 | round] | sort' "$T/hits")" ]
  [ "$(search '{"query":"cat dog","top_k":2}' | jq -c '[.results[].chunk.id]')" = "$(jq -c '[.results[:2][].chunk.id]' "$T/hits")" ]
  [ "$(search '{"query":"cat dog","rerank":false}' | jq -c '[.reranked_by, .results[0].score]')" = '[null,1]' ]
  [ "$(search "{\"query\":\"cat dog\",\"top_k\":10,\"min_score\":$(jq '(.results[1].score + .results[2].score) / 2' "$T/hits")}" | jq '.results | length')" = 2 ]
  [ "$(search '{"query":"cat dog","min_score":1}' | jq -c '[.reranked_by, .reason, .results]')" = '["rerank","no passage has a score of min_score or more",[]]' ]
  [ "$(search '{"query":"unseen"}' | jq -c '[.reranked_by, .results]')" = '[null,[]]' ]
  [ "$(curl -s "$URL/api/rag/context" -d '{"query":"cat dog","top_k":2}' | jq -c '[.reranked_by, [.sources[].chunk_id]]')" = \
    "[\"rerank\",$(jq -c '[.results[:2][].chunk.id]' "$T/hits")]" ]
  # unloaded: passages keep their order
  [ "$(curl -s -H "Authorization: Bearer $(cat "$BATS_TEST_TMPDIR/home/admin.token")" "$URL/api/models/unload" -d '{"model_id":"rerank"}' | jq .success)" = true ]
  [ "$(search '{"query":"cat dog"}' | jq -c '[.reranked_by, .results[0].score]')" = '[null,1]' ]
  [ "$(ready)" = '{"model":"rerank","ready":false}' ]
  kill -TERM "$PID" && wait "$PID"
}

@test "a reranker without token types gives the scores of /v1/score, takes 40 searches at once, and is cancelled when clients leave" {
  local log=$BATS_TEST_TMPDIR/log URL PID
  search() { curl -s "$URL/api/rag/search" -d "$1"; }
  cp -r "$T/rerank" "$T/plain"
  echo '{"model_input_names":["input_ids","attention_mask"]}' >"$T/plain/tokenizer_config.json"
  zse-convert "$T/plain" -q f32 -o "$T/plain.zse" >/dev/null 2>&1
  mkfifo "$log"
  ZSE_HOME=$BATS_TEST_TMPDIR/home zse-serve "$T/tiny.zse" --port 0 --rerank-model "$T/plain.zse" --max-queue 2 >"$log" 2>"$log.err" 3>&- &
  PID=$!
  read -r _ _ URL <"$log"
  await listens "$URL"
  await says true eval 'curl -s "$URL/api/rag/stats" | jq .reranker.ready'
  for i in "the cat sat" "a dog ran" "cat cat cat"; do
    jq -n --arg t "$i" '{name: $t, content: $t}' | curl -s "$URL/api/rag/documents" -d @- >/dev/null
  done
  curl -s "$URL/v1/score" -d '{"model":"plain","text_1":"cat dog","text_2":["the cat sat","a dog ran","cat cat cat"]}' >"$T/s"
  [ "$(search '{"query":"cat dog"}' | jq -c '[.results[].score * 1e5 | round] | sort')" = "$(jq -c '[.data[].score * 1e5 | round] | sort' "$T/s")" ]
  # only the end of a long query is used, because the question of a chat is there
  local pasted="the mat . far away"
  for i in {1..8}; do pasted+=" $pasted"; [ ${#pasted} -lt 2000 ] || break; done
  score() { search "$1" | jq '[.results[] | select(.document_name == "a dog ran").score]'; }
  [ "$(score "{\"query\":\"far $pasted a dog ran\"}")" = "$(score "{\"query\":\"cat $pasted a dog ran\"}")" ]
  [ "$(score "{\"query\":\"$pasted a dog ran\"}")" != "$(score "{\"query\":\"$pasted a dog sat\"}")" ]
  # with --max-queue 2 most texts must wait for the model, and yet 40 searches at once all succeed
  local i many=()
  for ((i = 0; i < 1600; i++)); do echo "cat $i dog the mat on which the cat sat while a dog ran far away to its home, ."; done >"$T/long"
  jq -n --rawfile t "$T/long" '{name: "long", content: $t}' | curl -s "$URL/api/rag/documents" -d @- >/dev/null
  for ((i = 0; i < 40; i++)); do many+=("$URL/api/rag/search"); done
  curl -sZ --parallel-immediate --parallel-max 40 "${many[@]}" -d '{"query":"cat dog","top_k":40}' -w '\n' >"$T/all"
  [ "$(jq -r .reranked_by "$T/all" | sort | uniq -c | xargs)" = "40 plain" ]
  # when the clients leave, texts that wait for the model are cancelled and the rest is never sent
  # to it
  sent() { curl -s "$URL/api/batching" | jq '.engines.plain.submitted'; }
  more() { [ "$(sent)" -gt "$1" ]; }
  idle() { [ "$(curl -s "$URL/api/batching" | jq '.engines.plain | .processing + .queued')" = 0 ]; }
  local before each
  before=$(sent)
  each=$(search '{"query":"cat dog","top_k":100,"rerank":false}' | jq '.results | length')
  curl -sZ --parallel-immediate "${many[@]:0:20}" -d '{"query":"cat dog","top_k":100}' >/dev/null &
  local searches=$!
  curl -sZ --parallel-immediate "${many[@]/%api*/v1/chat/completions}" -d '{"model":"tiny","max_tokens":1,"rag":{"top_k":100},"messages":[{"role":"user","content":"cat dog"}]}' >/dev/null &
  await more "$before"
  kill -KILL $! $searches
  wait $! $searches || true
  await idle
  await idle
  [ "$(sent)" -lt $((before + 40 * each)) ]
  [ "$(search '{"query":"cat dog"}' | jq -r .reranked_by)" = plain ]
  kill -TERM "$PID" && wait "$PID"
}

@test "zse-chat --embed prints the vectors that the server has, a line for each line, and the reason where there is none" {
  local m
  printf 'a b\nWhat is 2+2?\nx\0y\nc' >"$T/lines"
  for m in embed tiny; do
    run -1 --separate-stderr zse-chat "$T/$m.zse" --embed --parallel 2 <"$T/lines"
    [ "$(jq -c .index <<<"$output" | paste -sd,)" = 0,1,2,3 ]
    [ "$(jq -c '[.index, .tokens, .error]' <<<"${lines[2]}")" = '[2,null,"it has a zero byte"]' ]
    diff <(jq -c 'select(.embedding) | .embedding' <<<"$output") \
      <(post embeddings "{\"model\":\"$m\",\"input\":[\"a b\",\"What is 2+2?\",\"c\"]}" | jq -c '.data[].embedding')
  done
  run -1 --separate-stderr zse-chat "$T/rerank.zse" --embed <"$T/lines"
  [[ $stderr == *"scores pairs of texts and makes no vectors" ]]
  for m in '-p x:a prompt' '--raw:--raw' '--temp 0:options of sampling' '--history:--history' '-n 5:-n' '--no-wrap:--no-wrap'; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr zse-chat "$T/tiny.zse" --embed ${m%:*}
    [[ $stderr == *"--embed makes vectors and no answers: not with ${m#*:}"* ]]
  done
}

@test "zse-chat --embed answers a line before the next one comes, and a line longer than its buffer" {
  local line in out
  coproc embedder { exec zse-chat "$T/tiny.zse" --embed --parallel 4 3>&-; }
  exec {in}>&"${embedder[1]}" {out}<&"${embedder[0]}"
  for i in 0 1; do
    echo "What is $i?" >&"$in"
    read -r -t 60 -u "$out" line
    jq -e ".index == $i and .tokens > 3" <<<"$line"
  done
  printf 'no newline' >&"$in"
  exec {in}>&-
  eval "exec ${embedder[1]}>&-"
  read -r -t 60 -u "$out" line
  jq -e '.index == 2' <<<"$line"
  run ! read -r -t 60 -u "$out" line
  { head -c 150000 /dev/zero | tr '\0' a; echo; echo b; } >"$T/long"
  run -1 --separate-stderr zse-chat "$T/tiny.zse" --embed <"$T/long"
  [ "$(jq -c '[.index, has("embedding")]' <<<"$output" | paste -sd' ')" = '[0,false] [1,true]' ]
}
