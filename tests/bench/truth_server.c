/* A server that streams tokens by the clock and writes down when it really did.
 *
 *     gcc -O2 -Wall -Wextra -o truth_server truth_server.c
 *     ./truth_server PORT FIRST_MS GAP_MS TRUTH.csv        until SIGTERM or SIGINT
 *
 * A streaming POST to /v1/chat/completions, /v1/completions or /generate gets its first token FIRST_MS after the request was
 * read in full and token i another (i - 1) * GAP_MS later, each as SGLang sends it: one event in one HTTP chunk. With a gap of 0
 * all streams get tokens in turn, as fast as the sockets take them. Other paths answer what load generators ask before
 * they begin. One thread; times are CLOCK_MONOTONIC in ns, the clock of Python's perf_counter_ns.
 *
 * TRUTH.csv: seq,recv_ns,first_ns,last_ns,end_ns,tokens,late_ns,in_flight
 * late_ns: how late the server was for its worst token. in_flight: streams under way when this one came, itself included.
 *
 * Every stream waits in one of two queues: for its first token or for a later one. All wait equally long in either, so whoever
 * came first is due first, and no queue ever needs sorting.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 16384, MAX_TOKENS = 8192, IN_BYTES = 1 << 20, EVENT_BYTES = 1 << 17 };
enum shape { CHAT, COMPLETIONS, GENERATE };
static const char TEXT[] = " hello";

typedef int64_t ns;

struct stream {
    int fd;
    enum shape shape;
    int active, queued, usage, running_usage;
    int tokens, sent, prompt_tokens, in_flight;
    long seq;
    ns recv, first, last, due, late;
    char *in;
    size_t in_len;
    char *out;
    size_t out_len, out_at, out_room;
};

struct queue {
    struct stream *items[MAX_FD];
    size_t head, count;
};

struct truth {
    long seq;
    ns recv, first, last, end, late;
    int tokens, in_flight;
};

static struct stream *streams[MAX_FD];
static struct queue for_first, for_next;
static struct truth *truths;
static size_t truth_count, truth_room;
static ns first_wait, gap;
static int epoll, timer, under_way;
static long sequence;
static volatile sig_atomic_t stopping;

static void on_signal(int signum) { (void)signum; stopping = 1; }

static ns now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void push(struct queue *queue, struct stream *stream) {
    queue->items[(queue->head + queue->count++) % MAX_FD] = stream;
    stream->queued = 1;
}

static struct stream *peek(struct queue *queue) { return queue->count ? queue->items[queue->head] : NULL; }

static void pop(struct queue *queue) {
    if (queue->items[queue->head]) queue->items[queue->head]->queued = 0;
    queue->head = (queue->head + 1) % MAX_FD;
    queue->count--;
}

static void forget(struct queue *queue, struct stream *stream) {   /* a gap is left, to be skipped when it comes up */
    for (size_t i = 0; i < queue->count; i++) {
        size_t at = (queue->head + i) % MAX_FD;
        if (queue->items[at] == stream) queue->items[at] = NULL;
    }
}

/* ---- output ---- */

static void put(struct stream *s, const char *bytes, size_t length) {
    if (s->out_len + length > s->out_room) {
        s->out_room = (s->out_len + length) * 2;
        s->out = realloc(s->out, s->out_room);
    }
    memcpy(s->out + s->out_len, bytes, length);
    s->out_len += length;
}

__attribute__((format(printf, 2, 3))) static void event(struct stream *s, const char *format, ...) {
    static char text[EVENT_BYTES];
    char size[24];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    put(s, size, (size_t)sprintf(size, "%x\r\n", length));
    put(s, text, (size_t)length);
    put(s, "\r\n", 2);
}

static void watch_writing(struct stream *s, int on) {
    struct epoll_event change = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = s->fd};
    epoll_ctl(epoll, EPOLL_CTL_MOD, s->fd, &change);
}

/* 0: all is out. 1: the socket is full. -1: the peer is gone. */
static int flush(struct stream *s) {
    while (s->out_at < s->out_len) {
        ssize_t sent = send(s->fd, s->out + s->out_at, s->out_len - s->out_at, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) return -1;
            watch_writing(s, 1);
            return 1;
        }
        s->out_at += (size_t)sent;
    }
    s->out_at = s->out_len = 0;
    return 0;
}

static void drop(struct stream *s) {
    if (s->queued) { forget(&for_first, s); forget(&for_next, s); }
    if (s->active) under_way--;
    close(s->fd);
    streams[s->fd] = NULL;
    free(s->in);
    free(s->out);
    free(s);
}

/* ---- tokens ---- */

static const char *usage_text(struct stream *s, int tokens) {
    static char text[160];
    sprintf(text, "{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":null}",
            s->prompt_tokens, s->prompt_tokens + tokens, tokens);
    return text;
}

#define CHAT_HEAD "data: {\"id\":\"%032ld\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"tiny\","
#define TEXT_HEAD "data: {\"id\":\"%032ld\",\"object\":\"text_completion\",\"created\":1790000000,\"model\":\"tiny\","

static void chat_event(struct stream *s, const char *delta, const char *finish, const char *usage) {
    event(s, CHAT_HEAD "\"choices\":[{\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s,\"matched_stop\":null}],"
          "\"usage\":%s}\n\n", s->seq, delta, finish, usage);
}

static void token_event(struct stream *s) {
    int last = s->sent == s->tokens;
    const char *usage = s->running_usage ? usage_text(s, s->sent) : "null";
    static char text[sizeof TEXT * MAX_TOKENS], ids[8 * MAX_TOKENS];
    switch (s->shape) {
    case CHAT:
        if (s->sent == 1)
            chat_event(s, "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":null,\"tool_calls\":null}", "null", "null");
        chat_event(s, "{\"role\":null,\"content\":\" hello\",\"reasoning_content\":null,\"tool_calls\":null}", "null", usage);
        break;
    case COMPLETIONS:
        event(s, TEXT_HEAD "\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s,\"matched_stop\":null}],"
              "\"usage\":%s}\n\n", s->seq, TEXT, last ? "\"length\"" : "null", usage);
        break;
    case GENERATE:                          /* text and ids repeat all output so far */
        for (int i = 0; i < s->sent; i++) {
            memcpy(text + (size_t)i * (sizeof TEXT - 1), TEXT, sizeof TEXT);
            sprintf(ids + 4 * i, i + 1 < s->sent ? "300," : "300");
        }
        event(s, "data: {\"text\":\"%s\",\"output_ids\":[%s],\"meta_info\":{\"id\":\"%032ld\",\"finish_reason\":%s,\"prompt_tokens\":%d,"
              "\"weight_version\":\"default\",\"total_retractions\":0,\"completion_tokens\":%d,\"cached_tokens\":0}}\n\n",
              text, ids, s->seq, last ? "{\"type\":\"length\"}" : "null", s->prompt_tokens, s->sent);
    }
}

static void keep_truth(struct stream *s) {
    if (truth_count == truth_room) {
        truth_room = truth_room * 2 + 4096;
        truths = realloc(truths, truth_room * sizeof *truths);
    }
    truths[truth_count++] = (struct truth){s->seq, s->recv, s->first, s->last, now(), s->late, s->tokens, s->in_flight};
}

static void end_stream(struct stream *s) {
    if (s->shape == CHAT)
        chat_event(s, "{\"role\":null,\"content\":null,\"reasoning_content\":null,\"tool_calls\":null}", "\"length\"", "null");
    if (s->usage && s->shape == CHAT) event(s, CHAT_HEAD "\"choices\":[],\"usage\":%s}\n\n", s->seq, usage_text(s, s->tokens));
    if (s->usage && s->shape == COMPLETIONS) event(s, TEXT_HEAD "\"choices\":[],\"usage\":%s}\n\n", s->seq, usage_text(s, s->tokens));
    event(s, "data: [DONE]\n\n");
    put(s, "0\r\n\r\n", 5);
    s->active = 0;
    under_way--;
    keep_truth(s);
}

/* The stream at the head of `queue` is due: send its token and queue it for the next. */
static void serve(struct queue *queue, ns time) {
    struct stream *s = peek(queue);
    pop(queue);
    if (time - s->due > s->late) s->late = time - s->due;
    if (++s->sent == 1) s->first = time;
    s->last = time;
    token_event(s);
    if (s->sent == s->tokens) end_stream(s);
    s->due = gap ? s->due + gap : time;
    int full = flush(s);
    if (full < 0) drop(s);
    else if (!full && s->active) push(&for_next, s);   /* a full socket is queued again when it has drained */
}

/* Sends what is due; with no gap, one round of all streams. Leaves the timer set for what is due next. */
static void serve_due(void) {
    size_t left = for_first.count + for_next.count;
    ns time = now();
    for (;;) {
        while (for_first.count && !peek(&for_first)) pop(&for_first);
        while (for_next.count && !peek(&for_next)) pop(&for_next);
        struct stream *a = peek(&for_first), *b = peek(&for_next);
        struct queue *queue = a && (!b || a->due <= b->due) ? &for_first : &for_next;
        struct stream *s = peek(queue);
        if (!s || s->due > time || !left--) {
            struct itimerspec at = {0};
            if (s) {
                ns due = s->due > time ? s->due : time;
                at.it_value = (struct timespec){due / 1000000000, due % 1000000000};
            }
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
            return;
        }
        serve(queue, time);
        time = now();
    }
}

/* ---- requests ---- */

static const char *after_key(const char *body, const char *key) {
    const char *at = strstr(body, key);
    if (!at) return NULL;
    at += strlen(key);
    while (*at == ' ' || *at == ':') at++;
    return at;
}

static int number(const char *body, const char *key, int otherwise) {
    const char *at = after_key(body, key);
    return at && *at >= '0' && *at <= '9' ? atoi(at) : otherwise;
}

static int flag(const char *body, const char *key) {
    const char *at = after_key(body, key);
    return at && !strncmp(at, "true", 4);
}

static void answer(struct stream *s, const char *status, const char *body) {
    char head[200];
    int length = sprintf(head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status, strlen(body));
    put(s, head, (size_t)length);
    put(s, body, strlen(body));
}

static void begin_stream(struct stream *s, enum shape shape, const char *body, size_t length) {
    int tokens = number(body, "\"max_completion_tokens\"", number(body, "\"max_tokens\"", number(body, "\"max_new_tokens\"", 128)));
    s->shape = shape;
    s->tokens = tokens < 1 ? 1 : tokens > MAX_TOKENS ? MAX_TOKENS : tokens;
    s->sent = 0;
    s->usage = flag(body, "\"include_usage\"");
    s->running_usage = flag(body, "\"continuous_usage_stats\"");
    s->prompt_tokens = (int)(length / 4) + 1;
    s->seq = ++sequence;
    s->late = 0;
    s->active = 1;
    s->in_flight = ++under_way;
    s->recv = now();
    s->due = s->recv + first_wait;
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    put(s, head, sizeof head - 1);
    push(&for_first, s);
}

static void request(struct stream *s, const char *line, const char *body, size_t length) {
    char path[128] = "";
    sscanf(line, "%*s %127[^ ?]", path);
    int shape = !strcmp(path, "/v1/chat/completions") ? CHAT : !strcmp(path, "/v1/completions") ? COMPLETIONS
              : !strcmp(path, "/generate") ? GENERATE : -1;
    if (shape >= 0 && flag(body, "\"stream\"")) begin_stream(s, (enum shape)shape, body, length);
    else if (shape == CHAT)
        answer(s, "200 OK", "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"message\":"
               "{\"role\":\"assistant\",\"content\":\" hello\"},\"finish_reason\":\"length\"}],"
               "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1,\"total_tokens\":6}}");
    else if (!strcmp(path, "/v1/models"))
        answer(s, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":1,\"owned_by\":\"x\",\"root\":\"tiny\"}]}");
    else if (strstr(path, "model_info"))
        answer(s, "200 OK", "{\"model_path\":\"tiny\",\"tokenizer_path\":\"tiny\",\"is_generation\":true}");
    else if (strstr(path, "server_info"))
        answer(s, "200 OK", "{\"version\":\"0.5.23\",\"model_path\":\"tiny\",\"internal_states\":[{}]}");
    else if (!strncmp(path, "/health", 7) || !strcmp(path, "/flush_cache")) answer(s, "200 OK", "{}");
    else answer(s, "404 Not Found", "{}");
}

static void take_requests(struct stream *s) {
    while (!s->active) {
        s->in[s->in_len] = 0;
        char *end = strstr(s->in, "\r\n\r\n");
        if (!end) return;
        size_t head = (size_t)(end + 4 - s->in), length = 0;
        *end = 0;
        const char *field = strcasestr(s->in, "\r\ncontent-length:");
        if (field) length = strtoul(field + 17, NULL, 10);
        *end = '\r';
        if (s->in_len < head + length) return;
        char next = s->in[head + length];
        s->in[head + length] = 0;
        request(s, s->in, s->in + head, length);
        s->in[head + length] = next;
        s->in_len -= head + length;
        memmove(s->in, s->in + head + length, s->in_len);
    }
}

static void accept_all(int listener) {
    static const int on = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        if (fd >= MAX_FD) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct stream *s = streams[fd] = calloc(1, sizeof *s);
        s->fd = fd;
        s->in = malloc(IN_BYTES + 1);
        struct epoll_event add = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &add);
    }
}

static void on_socket(struct stream *s, uint32_t events) {
    if (events & EPOLLOUT) {
        int full = flush(s);
        if (full < 0) { drop(s); return; }
        if (!full) {
            watch_writing(s, 0);
            if (s->active && !s->queued) {
                if (s->due < now()) s->due = now();
                push(&for_next, s);
            }
        }
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t got = recv(s->fd, s->in + s->in_len, IN_BYTES - s->in_len, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) { drop(s); return; }
        if (got > 0) s->in_len += (size_t)got;
    }
    take_requests(s);                       /* one that came early waits for the end of the stream before it */
    if (s->out_at < s->out_len && !(events & EPOLLOUT) && flush(s) < 0) drop(s);
}

static int listen_on(int port) {
    static const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 8192)) { perror("truth_server"); exit(1); }
    return fd;
}

static void write_truth(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) { perror(path); exit(1); }
    fprintf(file, "seq,recv_ns,first_ns,last_ns,end_ns,tokens,late_ns,in_flight\n");
    for (size_t i = 0; i < truth_count; i++) {
        struct truth *t = &truths[i];
        fprintf(file, "%ld,%ld,%ld,%ld,%ld,%d,%ld,%d\n", t->seq, (long)t->recv, (long)t->first, (long)t->last, (long)t->end,
                t->tokens, (long)t->late, t->in_flight);
    }
    if (fclose(file)) { perror(path); exit(1); }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: truth_server PORT FIRST_MS GAP_MS TRUTH.csv\n");
        return 2;
    }
    first_wait = (ns)(atof(argv[2]) * 1e6);
    gap = (ns)(atof(argv[3]) * 1e6);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int listener = listen_on(atoi(argv[1]));
    epoll = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event add = {.events = EPOLLIN, .data.fd = listener}, ready[1024];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &add);
    add.data.fd = timer;
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &add);
    while (!stopping) {
        int count = epoll_wait(epoll, ready, 1024, -1);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            uint64_t ticks;
            if (fd == listener) accept_all(listener);
            else if (fd == timer) (void)!read(timer, &ticks, sizeof ticks);
            else if (streams[fd]) on_socket(streams[fd], ready[i].events);
        }
        serve_due();
    }
    write_truth(argv[4]);
    return 0;
}
