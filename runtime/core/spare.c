/* SPDX-License-Identifier: Apache-2.0 */
#include "core/spare.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { SMALLEST = 256, CLASSES = 13 /* up to 1 MiB; larger ones are not kept */ };

typedef struct piece {
    alignas(16) tt_spare *spare;
    struct piece *next; /* of those kept */
    size_t class;
} piece;

struct tt_spare {
    pthread_mutex_t lock;
    size_t held; /* by the owner, and by every piece that is out */
    piece *kept[CLASSES];
};

tutti_status tt_spare_create(tt_spare **spare_out)
{
    tt_spare *spare;
    TT_TRY(tt_calloc(1, sizeof *spare, &spare));
    pthread_mutex_init(&spare->lock, NULL);
    spare->held = 1;
    *spare_out = spare;
    return TUTTI_OK;
}

static void destroy(tt_spare *spare)
{
    for (size_t i = 0; i < CLASSES; i++) {
        for (piece *p = spare->kept[i], *next; p != NULL; p = next) {
            next = p->next;
            free(p);
        }
    }
    pthread_mutex_destroy(&spare->lock);
    free(spare);
}

/* Takes back what one holder holds, and keeps its piece if it has one. */
static void release(tt_spare *spare, piece *p)
{
    pthread_mutex_lock(&spare->lock);
    if (p != NULL) {
        p->next = spare->kept[p->class];
        spare->kept[p->class] = p;
    }
    bool last = --spare->held == 0;
    pthread_mutex_unlock(&spare->lock);
    if (last)
        destroy(spare);
}

void tt_spare_drop(tt_spare *spare)
{
    if (spare != NULL)
        release(spare, NULL);
}

static size_t class_of(size_t bytes)
{
    size_t class = 0;
    while (class < CLASSES && (size_t)SMALLEST << class < bytes)
        class ++;
    return class;
}

tutti_status tt_spare_take(tt_spare *spare, size_t bytes, void *ptr_out)
{
    const size_t class = class_of(bytes);
    piece *p = NULL;
    void *data;

    if (class < CLASSES) {
        pthread_mutex_lock(&spare->lock);
        p = spare->kept[class];
        if (p != NULL)
            spare->kept[class] = p->next;
        spare->held += p != NULL;
        pthread_mutex_unlock(&spare->lock);
    }
    if (p == NULL) {
        const size_t room = class < CLASSES ? (size_t)SMALLEST << class : bytes;
        if (room > SIZE_MAX - sizeof *p)
            return tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
        TT_TRY(tt_calloc(1, sizeof *p + room, &p));
        p->class = class;
        if (class < CLASSES) {
            p->spare = spare;
            pthread_mutex_lock(&spare->lock);
            spare->held++;
            pthread_mutex_unlock(&spare->lock);
        }
    } else {
        memset(p + 1, 0, bytes);
    }
    data = p + 1;
    memcpy(ptr_out, &data, sizeof data);
    return TUTTI_OK;
}

void tt_spare_give(void *ptr)
{
    piece *p = ptr;
    if (p == NULL)
        return;
    p--;
    if (p->spare == NULL)
        free(p);
    else
        release(p->spare, p);
}
