/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads bootstrap: the ranks of a job are threads of one process. Each rank has a mailbox, a
 * list of messages nobody has asked for yet and a list of receives that no message has met; both
 * are matched in order, under the mailbox's lock.
 *
 * Small messages are copied and their sends are done at once. Larger ones stay in the sender's
 * buffer until a receive takes them, as MPI's rendezvous does: a caller that reuses the buffer too
 * early is seen by ThreadSanitizer here, before it corrupts data under MPI.
 *
 * A request points to a `post`. Its state is written last, under the mailbox's lock and after it
 * left the list; whoever owns the request frees it. Messages of different contexts over one group
 * of threads are kept apart by a generation, the number of contexts the rank has joined before.
 * Whoever may have finished a rank's request rings its bell, so waiting ranks sleep and do not
 * poll: 64 ranks on 2 cores must work.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/boot.h"
#include "core/env.h"
#include "core/mem.h"
#include "core/thread.h"

enum { EAGER_BYTES = 4096, RANKS_MAX = 1024 };
enum { PENDING, DONE, TOO_LONG };

typedef struct threads_boot threads_boot;

typedef struct post {
    struct post *next;
    threads_boot *owner; /* whose request this is; NULL: a copied message, nobody's */
    struct box *box; /* the mailbox it waits in */
    uint64_t generation;
    tt_channel ch;
    uint32_t tag;
    int source; /* of a receive: the wanted one, or TT_ANY; then the message's */
    unsigned char *buf;
    size_t bytes; /* of a receive: room, then the message's size */
    _Atomic int state;
    unsigned char copy[];
} post;

typedef struct post_list {
    post *first, **end;
} post_list;

typedef struct box {
    pthread_mutex_t lock;
    post_list messages, receives;
    _Atomic uint32_t bell, watch_bell;
    _Atomic uint64_t joined; /* contexts so far */
} box;

struct tutti_threads {
    int n;
    int *node; /* of each rank; NULL: all on this machine */
    box box[];
};

struct threads_boot {
    tt_boot base;
    tutti_threads *threads;
    uint64_t generation;
};

static void list_add(post_list *list, post *p)
{
    p->next = NULL;
    *list->end = p;
    list->end = &p->next;
}

static void list_unlink(post_list *list, post **at)
{
    post *p = *at;
    *at = p->next;
    if (list->end == &p->next)
        list->end = at;
}

static void ring(box *b, tt_channel ch)
{
    _Atomic uint32_t *bell = ch == TT_CH_STEP || ch == TT_CH_WATCH ? &b->watch_bell : &b->bell;
    atomic_fetch_add(bell, 1);
    tt_futex_wake_all(bell);
}

static box *box_of(const threads_boot *b)
{
    return &b->threads->box[b->base.rank];
}

/* The first of the list that `key` meets; one of the two is a receive and may want any source. */
static post *take_match(post_list *list, const post *key)
{
    for (post **at = &list->first; *at != NULL; at = &(*at)->next) {
        post *p = *at;
        bool same_source = p->source == key->source || p->source == TT_ANY || key->source == TT_ANY;
        if (same_source && p->generation == key->generation && p->ch == key->ch &&
            p->tag == key->tag) {
            list_unlink(list, at);
            return p;
        }
    }
    return NULL;
}

/* The receive is in no list any more and may be freed by its owner as soon as the state is out. */
static void deliver(post *receive, int source, const void *data, size_t bytes)
{
    bool fits = bytes <= receive->bytes;
    if (fits && bytes > 0)
        memcpy(receive->buf, data, bytes);
    receive->source = source;
    receive->bytes = bytes;
    atomic_store_explicit(&receive->state, fits ? DONE : TOO_LONG, memory_order_release);
}

static tutti_status make_post(threads_boot *b, post key, size_t copy_bytes, post **out)
{
    post *p = NULL;
    TT_TRY(tt_calloc(1, sizeof *p + copy_bytes, &p));
    p->owner = key.owner;
    p->box = key.box;
    p->generation = b->generation;
    p->ch = key.ch;
    p->tag = key.tag;
    p->source = key.source;
    p->buf = key.buf;
    p->bytes = key.bytes;
    *out = p;
    return TUTTI_OK;
}

static tutti_status threads_isend(tt_boot *boot, tt_channel ch, int peer, uint32_t tag,
                                  const void *buf, size_t bytes, tt_req *req)
{
    threads_boot *b = (threads_boot *)boot;
    box *to = &b->threads->box[peer];
    bool eager = bytes <= EAGER_BYTES;
    post key = {.owner = eager ? NULL : b,
                .box = to,
                .generation = b->generation,
                .ch = ch,
                .tag = tag,
                .source = boot->rank,
                .buf = (unsigned char *)(size_t)buf,
                .bytes = bytes};
    tutti_status status = TUTTI_OK;

    *req = (tt_req){0};
    pthread_mutex_lock(&to->lock);
    post *receive = take_match(&to->receives, &key);
    if (receive != NULL) {
        deliver(receive, boot->rank, buf, bytes);
    } else {
        post *message = NULL;
        status = make_post(b, key, eager ? bytes : 0, &message);
        if (status == TUTTI_OK) {
            if (eager && bytes > 0)
                message->buf = memcpy(message->copy, buf, bytes);
            list_add(&to->messages, message);
            req->ptr = eager ? NULL : message;
        }
    }
    pthread_mutex_unlock(&to->lock);
    if (receive != NULL)
        ring(to, ch);
    return status;
}

static tutti_status threads_irecv(tt_boot *boot, tt_channel ch, int peer, uint32_t tag, void *buf,
                                  size_t cap, tt_req *req)
{
    threads_boot *b = (threads_boot *)boot;
    box *mine = box_of(b), *sender = NULL;
    post key = {
        .owner = b, .box = mine, .ch = ch, .tag = tag, .source = peer, .buf = buf, .bytes = cap};
    post *receive = NULL;

    *req = (tt_req){0};
    TT_TRY(make_post(b, key, 0, &receive));
    req->ptr = receive;
    pthread_mutex_lock(&mine->lock);
    post *message = take_match(&mine->messages, receive);
    if (message == NULL) {
        list_add(&mine->receives, receive);
    } else {
        deliver(receive, message->source, message->buf, message->bytes);
        if (message->owner != NULL) {
            sender = &b->threads->box[message->source];
            atomic_store_explicit(&message->state, DONE, memory_order_release);
        } else {
            free(message);
        }
    }
    pthread_mutex_unlock(&mine->lock);
    if (sender != NULL)
        ring(sender, ch);
    return TUTTI_OK;
}

static tutti_status threads_test(tt_boot *boot, tt_req *req, bool *done_out, size_t *bytes_out,
                                 int *source_out)
{
    post *p = req->ptr;
    (void)boot;
    if (p == NULL) {
        *done_out = true;
        return TUTTI_OK;
    }
    int state = atomic_load_explicit(&p->state, memory_order_acquire);
    *done_out = state != PENDING;
    if (state == PENDING)
        return TUTTI_OK;
    tutti_status status = TUTTI_OK;
    if (state == TOO_LONG)
        status = tt_fail(TUTTI_ERR_MISMATCH,
                         "a message of %zu bytes from rank %d is longer than expected", p->bytes,
                         p->source);
    if (bytes_out != NULL)
        *bytes_out = p->bytes;
    if (source_out != NULL)
        *source_out = p->source;
    free(p);
    req->ptr = NULL;
    return status;
}

static void unlink_if_there(post_list *list, const post *p)
{
    for (post **at = &list->first; *at != NULL; at = &(*at)->next)
        if (*at == p) {
            list_unlink(list, at);
            return;
        }
}

static void threads_cancel(tt_boot *boot, tt_req *req)
{
    post *p = req->ptr;
    (void)boot;
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->box->lock);
    unlink_if_there(&p->box->messages, p);
    unlink_if_there(&p->box->receives, p);
    pthread_mutex_unlock(&p->box->lock);
    free(p);
    req->ptr = NULL;
}

/* The process is the job: whoever ends it, ends all ranks. */
static void threads_abort(tt_boot *boot, int exit_code)
{
    (void)boot;
    (void)exit_code;
}

static void drop_posts(post_list *list, const threads_boot *owner)
{
    for (post **at = &list->first; *at != NULL;) {
        post *p = *at;
        if (p->owner == owner) {
            list_unlink(list, at);
            free(p);
        } else {
            at = &p->next;
        }
    }
}

static void threads_destroy(tt_boot *boot, bool failed)
{
    threads_boot *b = (threads_boot *)boot;
    (void)failed;
    for (int i = 0; i < b->threads->n; i++) {
        box *at = &b->threads->box[i];
        pthread_mutex_lock(&at->lock);
        drop_posts(&at->messages, b);
        drop_posts(&at->receives, b);
        pthread_mutex_unlock(&at->lock);
    }
    free(b);
}

static const tt_boot_ops threads_ops = {
    .size = sizeof(tt_boot_ops),
    .name = "threads",
    .isend = threads_isend,
    .irecv = threads_irecv,
    .test = threads_test,
    .cancel = threads_cancel,
    .abort = threads_abort,
    .destroy = threads_destroy,
};

tutti_status tt_boot_threads_create(tutti_threads *threads, int rank, tt_boot **boot_out)
{
    threads_boot *b = NULL;
    if (threads == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: the threads bootstrap needs opts.threads");
    if (rank < 0 || rank >= threads->n)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: rank %d is not among the %d thread ranks", rank,
                       threads->n);
    TT_TRY(tt_calloc(1, sizeof *b, &b));
    b->base = (tt_boot){.ops = &threads_ops,
                        .rank = rank,
                        .size = threads->n,
                        .any_thread = true,
                        .one_process = true,
                        .tag_limit = INT32_MAX,
                        .thread_level = "threads",
                        .fake_node = threads->node != NULL ? threads->node[rank] : -1,
                        .bell = &threads->box[rank].bell,
                        .watch_bell = &threads->box[rank].watch_bell};
    b->threads = threads;
    b->generation = atomic_fetch_add(&threads->box[rank].joined, 1);
    *boot_out = &b->base;
    return TUTTI_OK;
}

/* "2x4" or "3,1,4" into the node of each rank. */
static bool parse_nodes(const char *text, int n, int *node)
{
    long nodes = 0, each = 0;
    int used = 0, rank = 0;
    if (sscanf(text, "%4ldx%4ld%n", &nodes, &each, &used) == 2 && text[used] == '\0') {
        if (nodes < 1 || each < 1 || nodes * each != n)
            return false;
        for (int i = 0; i < n; i++)
            node[i] = i / (int)each;
        return true;
    }
    for (int i = 0; rank < n; i++) {
        char *end;
        long count = strtol(text, &end, 10);
        bool more = *end == ',';
        if (count < 1 || count > n - rank || (*end != '\0' && !more))
            return false;
        for (long k = 0; k < count; k++)
            node[rank++] = i;
        text = more ? end + 1 : end;
        if (more == (rank == n))
            return false;
    }
    return true;
}

tutti_status tutti_threads_create(int n, tutti_threads **threads_out)
{
    tutti_threads *threads = NULL;
    const char *nodes;
    if (n < 1 || n > RANKS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "tutti_threads_create: %d ranks; 1 to %d can be made", n,
                       RANKS_MAX);
    if (threads_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_threads_create: threads_out is NULL");
    TT_TRY(tt_env_get_string(TT_ENV_NODES, &nodes));
    TT_TRY(tt_calloc(1, sizeof *threads + (size_t)n * sizeof threads->box[0], &threads));
    threads->n = n;
    for (int i = 0; i < n; i++) {
        box *b = &threads->box[i];
        pthread_mutex_init(&b->lock, NULL);
        b->messages.end = &b->messages.first;
        b->receives.end = &b->receives.first;
    }
    tutti_status status = TUTTI_OK;
    if (nodes[0] != '\0') {
        status = tt_calloc((size_t)n, sizeof threads->node[0], &threads->node);
        if (status == TUTTI_OK && !parse_nodes(nodes, n, threads->node))
            status = tt_fail(TUTTI_ERR_ARG,
                             "TUTTI_NODES=%.100s does not place %d thread ranks (2x4: 2 nodes of "
                             "4; 3,1,4: nodes of 3, 1 and 4)",
                             nodes, n);
    }
    if (status != TUTTI_OK)
        goto destroy_threads;
    *threads_out = threads;
    return TUTTI_OK;
destroy_threads:
    tutti_threads_destroy(threads);
    return status;
}

static void free_list(post_list *list)
{
    while (list->first != NULL) {
        post *p = list->first;
        list->first = p->next;
        free(p);
    }
}

void tutti_threads_destroy(tutti_threads *threads)
{
    if (threads == NULL)
        return;
    for (int i = 0; i < threads->n; i++) {
        free_list(&threads->box[i].messages);
        free_list(&threads->box[i].receives);
        pthread_mutex_destroy(&threads->box[i].lock);
    }
    free(threads->node);
    free(threads);
}
