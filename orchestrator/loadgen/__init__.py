"""Load generator: one point of load against one server, measured from the client.

A process with files at both ends, standard library only, Python 3.8 or later:

    python3 loadgen.pyz SPEC.json RECORDS.jsonl

While it runs, standard output carries one JSON line a second (`done, failed, in_flight, output_tokens, elapsed_s`,
plus `phase`); the last line is `{"summary": {...}}`. `failed` and `output_tokens` are what can be told cheaply before
responses are parsed; the summary has the full count. Exit 0: the load was offered (failures are data). Exit 2: the
spec is bad, one line on standard error. SIGTERM or SIGINT: requests under way are closed, what was measured is
written, the summary says `interrupted: true`, exit 0.

The spec (`schema: 1`; unknown keys are refused):

host, port          where the server listens
endpoint            `/v1/chat/completions`, `/v1/completions` or `/generate`
requests, warmup    a batch each: `{"bodies": [{...}, ...]}`, or `{"template": {...}, "prompts": [...]}` where a prompt
                    is text, token ids or chat messages and is put where the endpoint wants it. Sent in this order.
                    Either may be empty or left out, not both.
load                `{"kind": "closed"}`
                    `{"kind": "open", "arrival": "constant" | "poisson", "rate_per_s": 8.0, "seed": 1}`
                    `{"kind": "straddle", "low": 5, "high": 10, "period_s": 2.0, "duration_s": 60.0 | null}`
concurrency         closed: requests kept in flight. open: most in flight, null is no limit. straddle: null
idle_timeout_s      a response that sends nothing for this long has failed (default 120)
request_timeout_s   a request that takes longer, from its sending, has failed (default 600)
connect_timeout_s   default 10
record_chunks       also write RECORDS.jsonl.chunks, `{"i": 0, "phase": "load", "ns": [...]}`: of each output chunk
api_key_env         name of the environment variable that holds a bearer token, or null

Loads. *Closed*: as a response ends, the next request is sent. *Open*: due times come from the schedule alone; a request
that waits for a free slot is sent late, and `sent_ns - due_ns` says how late. *Straddle*: closed, with `low` in flight
for the first half of each period and `high` for the second. Stepping down, requests under way end by themselves, so
they should be short against half a period. It ends after `duration_s`, or when the requests run out. No load cuts
requests off at its end: what was sent is waited for, within the two limits. Nothing is ever sent twice.

The warm-up has the same shape (straddle: closed at `high`) and ends before the load begins. One failed warm-up request
stops the point: `stopped` says why, and no load is offered.

A record is one line of RECORDS.jsonl, under 500 bytes. Times are `perf_counter_ns`; unknown is null:

i, phase            position in its batch; `warmup` or `load`
due_ns, sent_ns     when it should have been sent, and when it was
first_ns, last_ns   arrival of the first and last generated output: text, reasoning, tool call or token ids. A role,
                    empty, usage or comment event is none of these. Where the server counts tokens after the last
                    visible output, `last_ns` is the arrival of the finish reason.
end_ns              end of the response, or of the attempt
chunks              events that carried output; never a count of tokens
prompt_tokens, cached_tokens, output_tokens     as the server counted
first_tokens        the server's count of output tokens at `first_ns`
finish, ok, error   ok: status 200, the response complete and well formed, no error event, not aborted, with output
output_sha256       of the generated text, or of the comma-separated token ids where there is no text
verify_steps, accepted, drafted     target verify steps, and draft tokens accepted and proposed, of this request
"""

SCHEMA = 1
