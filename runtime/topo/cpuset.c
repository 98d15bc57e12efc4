/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processor sets as arrays of 64-bit words of the length needed. hwloc's bitmaps would do, but the
 * model must not depend on hwloc being loaded, and its lists must be read with a cap and an error.
 *
 * Invariant: the last word of a set is not 0, so equal sets have equal words.
 */
#include "topo/cpuset.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

void tt_cpuset_free(tt_cpuset *set)
{
    free(set->words);
    set->words = NULL;
    set->n_words = 0;
}

static tutti_status make_words(size_t n, tt_cpuset *set_out)
{
    tt_cpuset set = {NULL, (uint32_t)n};

    if (n != 0)
        TT_TRY(tt_calloc(n, sizeof(uint64_t), &set.words));
    *set_out = set;
    return TUTTI_OK;
}

static void trim(tt_cpuset *set)
{
    while (set->n_words > 0 && set->words[set->n_words - 1] == 0)
        set->n_words--;
}

static void replace(tt_cpuset *set, tt_cpuset with)
{
    trim(&with);
    tt_cpuset_free(set);
    *set = with;
}

tutti_status tt_cpuset_add(tt_cpuset *set, int cpu)
{
    uint32_t word = (uint32_t)cpu / 64;

    if (cpu < 0 || cpu >= TT_CPUS_MAX)
        return tt_fail(TUTTI_ERR_CORRUPT, "processor %d is not below %d", cpu, TT_CPUS_MAX);
    if (word >= set->n_words) {
        tt_cpuset grown;

        TT_TRY(make_words(word + 1, &grown));
        if (set->n_words != 0)
            memcpy(grown.words, set->words, set->n_words * sizeof(uint64_t));
        free(set->words);
        *set = grown;
    }
    set->words[word] |= UINT64_C(1) << (cpu % 64);
    return TUTTI_OK;
}

tutti_status tt_cpuset_copy(const tt_cpuset *from, tt_cpuset *to_out)
{
    tt_cpuset copy;

    TT_TRY(make_words(from->n_words, &copy));
    if (from->n_words != 0)
        memcpy(copy.words, from->words, from->n_words * sizeof(uint64_t));
    *to_out = copy;
    return TUTTI_OK;
}

static uint64_t word_of(const tt_cpuset *set, uint32_t i)
{
    return i < set->n_words ? set->words[i] : 0;
}

tutti_status tt_cpuset_and(const tt_cpuset *a, const tt_cpuset *b, tt_cpuset *out)
{
    tt_cpuset set;

    TT_TRY(make_words(a->n_words < b->n_words ? a->n_words : b->n_words, &set));
    for (uint32_t i = 0; i < set.n_words; i++)
        set.words[i] = a->words[i] & b->words[i];
    replace(out, set);
    return TUTTI_OK;
}

tutti_status tt_cpuset_or(const tt_cpuset *a, const tt_cpuset *b, tt_cpuset *out)
{
    tt_cpuset set;

    TT_TRY(make_words(a->n_words > b->n_words ? a->n_words : b->n_words, &set));
    for (uint32_t i = 0; i < set.n_words; i++)
        set.words[i] = word_of(a, i) | word_of(b, i);
    replace(out, set);
    return TUTTI_OK;
}

bool tt_cpuset_has(const tt_cpuset *set, int cpu)
{
    return cpu >= 0 && (word_of(set, (uint32_t)cpu / 64) >> (cpu % 64) & 1) != 0;
}

int tt_cpuset_count(const tt_cpuset *set)
{
    int count = 0;

    for (uint32_t i = 0; i < set->n_words; i++)
        count += __builtin_popcountll(set->words[i]);
    return count;
}

int tt_cpuset_next(const tt_cpuset *set, int after)
{
    for (uint32_t i = (uint32_t)(after + 1) / 64; i < set->n_words; i++) {
        uint64_t word = set->words[i];

        if (i == (uint32_t)(after + 1) / 64)
            word &= UINT64_MAX << ((after + 1) % 64);
        if (word != 0)
            return (int)(i * 64) + __builtin_ctzll(word);
    }
    return -1;
}

bool tt_cpuset_equal(const tt_cpuset *a, const tt_cpuset *b)
{
    return a->n_words == b->n_words &&
           (a->n_words == 0 || memcmp(a->words, b->words, a->n_words * sizeof(uint64_t)) == 0);
}

/* A decimal number below TT_CPUS_MAX at *text, which is moved behind it; -1: there is none. */
static int take_cpu(const char **text)
{
    long value = 0;

    if (!isdigit((unsigned char)**text))
        return -1;
    for (; isdigit((unsigned char)**text); (*text)++) {
        value = value * 10 + (**text - '0');
        if (value >= TT_CPUS_MAX)
            return -1;
    }
    return (int)value;
}

tutti_status tt_cpuset_parse_list(const char *text, tt_cpuset *set_out)
{
    tt_cpuset set = {NULL, 0};
    const char *at = text;
    tutti_status status = TUTTI_OK;

    for (bool more = *at != 0 && *at != '\n'; more; more = *at == ',' && at++ != NULL) {
        int first = take_cpu(&at), last = first;

        if (first >= 0 && *at == '-') {
            at++;
            last = take_cpu(&at);
        }
        if (first < 0 || last < first) {
            status = tt_fail(TUTTI_ERR_CORRUPT, "\"%.40s\" is no list of processors", text);
            goto free_set;
        }
        for (int cpu = last; cpu >= first; cpu--) {
            status = tt_cpuset_add(&set, cpu);
            if (status != TUTTI_OK)
                goto free_set;
        }
    }
    if (*at != 0 && *at != '\n') {
        status = tt_fail(TUTTI_ERR_CORRUPT, "\"%.40s\" is no list of processors", text);
        goto free_set;
    }
    replace(set_out, set);
    return TUTTI_OK;

free_set:
    tt_cpuset_free(&set);
    return status;
}

tutti_status tt_cpuset_parse_mask(const char *text, tt_cpuset *set_out)
{
    size_t length = strcspn(text, "\n");
    int bit = 0;
    tt_cpuset set = {NULL, 0};
    tutti_status status = TUTTI_OK;

    /* Backwards; a comma ends a group of 32 processors, of which leading zeros may be left out. */
    for (size_t i = length; i-- > 0;) {
        char digit[2] = {text[i], 0};
        unsigned value;

        if (text[i] == ',') {
            bit = (bit + 31) / 32 * 32;
            continue;
        }
        if (!isxdigit((unsigned char)text[i]) || bit >= TT_CPUS_MAX) {
            status = tt_fail(TUTTI_ERR_CORRUPT, "\"%.40s\" is no mask of processors", text);
            goto free_set;
        }
        value = (unsigned)strtoul(digit, NULL, 16);
        for (int k = 0; k < 4; k++) {
            if ((value >> k & 1) == 0)
                continue;
            status = tt_cpuset_add(&set, bit + k);
            if (status != TUTTI_OK)
                goto free_set;
        }
        bit += 4;
    }
    replace(set_out, set);
    return TUTTI_OK;

free_set:
    tt_cpuset_free(&set);
    return status;
}

/* Puts a piece at `at` of a buffer that may be too small already. */
static size_t append(char *text, size_t bytes, size_t at, const char *piece)
{
    for (; *piece != 0; piece++) {
        if (at + 1 < bytes)
            text[at] = *piece;
        at++;
    }
    return at;
}

size_t tt_cpuset_print_list(const tt_cpuset *set, char *text, size_t bytes)
{
    size_t at = 0;

    for (int cpu = tt_cpuset_next(set, -1); cpu >= 0;) {
        char piece[32];
        int last = cpu;

        while (tt_cpuset_has(set, last + 1))
            last++;
        (void)snprintf(piece, sizeof piece, "%s%d", at != 0 ? "," : "", cpu);
        at = append(text, bytes, at, piece);
        (void)snprintf(piece, sizeof piece, "-%d", last);
        if (last > cpu)
            at = append(text, bytes, at, piece);
        cpu = tt_cpuset_next(set, last);
    }
    if (bytes != 0)
        text[at < bytes ? at : bytes - 1] = 0;
    return at;
}

size_t tt_cpuset_print_mask(const tt_cpuset *set, char *text, size_t bytes)
{
    size_t at = 0;

    for (uint32_t i = set->n_words; i-- > 0;) {
        char piece[32];

        (void)snprintf(piece, sizeof piece, "%s%08x,%08x", at != 0 ? "," : "",
                       (unsigned)(set->words[i] >> 32), (unsigned)set->words[i]);
        at = append(text, bytes, at, piece);
    }
    if (at == 0)
        at = append(text, bytes, at, "00000000");
    if (bytes != 0)
        text[at < bytes ? at : bytes - 1] = 0;
    return at;
}
