/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of `nvidia-smi topo -m` and `topo -p2p`, as people paste it: with tabs or with blanks,
 * indented or quoted, with the escape sequences of underlined headers or what is left of them, with
 * rows in any order, cut after the NICs, or one cell too long.
 *
 * A table begins with a line whose words are device names. Its cells are words, so tabs matter only
 * behind them, where a column may be empty. Every cell is checked: what is no known word counts as
 * unknown and is noted. A row with too many cells is aligned at its X, the rest at its end:
 * machines that hide a device print a column too much.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/matrix.h"
#include "topo/read.h"

enum { LINE_MAX_BYTES = 16384, WORDS_MAX = TT_MATRIX_DEVICES + 16, TEXT_MAX = 4 << 20 };

typedef struct parser {
    const char *name;
    tutti_topo *topo; /* for notes */
    tt_matrix matrix;
    char line[LINE_MAX_BYTES];
    char *words[WORDS_MAX]; /* of the line, cut at blanks; the line itself stays in `whole` */
    char whole[LINE_MAX_BYTES];
    int n_words;
    uint32_t number; /* of the line */
    bool links_done; /* the -m table is there */
    int columns[WORDS_MAX], n_columns; /* open table: device of each column */
    bool open, is_p2p;
} parser;

/* Copies the line without escape sequences, quote signs in front and carriage returns. */
static void clean(const char *text, size_t length, char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < length && n + 1 < LINE_MAX_BYTES; i++) {
        if (text[i] == 0x1b ||
            (text[i] == '[' && i + 1 < length && text[i + 1] >= '0' && text[i + 1] <= '9')) {
            size_t k = i + 1;

            while (k < length && strchr("[0123456789;", text[k]) != NULL)
                k++;
            if (k < length && isalpha((unsigned char)text[k]) && k - i < 12) {
                i = k;
                continue;
            }
        }
        if (text[i] != 0 && text[i] != '\r')
            out[n++] = text[i];
    }
    out[n] = 0;
    n = strspn(out, " \t>|`");
    memmove(out, out + n, strlen(out) - n + 1);
}

static void split(parser *p)
{
    char *at = p->line;

    memcpy(p->line, p->whole, strlen(p->whole) + 1);
    p->n_words = 0;
    while (p->n_words < WORDS_MAX) {
        at += strspn(at, " \t");
        if (*at == 0)
            return;
        p->words[p->n_words++] = at;
        at += strcspn(at, " \t");
        if (*at != 0)
            *at++ = 0;
    }
}

/* The number of "GPU7"; -1: no such word. */
static int gpu_number(const char *word)
{
    if (strncmp(word, "GPU", 3) != 0 || !isdigit((unsigned char)word[3]) || strlen(word) > 7)
        return -1;
    return word[3 + strspn(word + 3, "0123456789")] == 0 ? atoi(word + 3) : -1;
}

/* "mlx5_0", "NIC3", "bnxt_re0": a word with a digit that is no number and no range. */
static bool is_device(const char *word)
{
    if (gpu_number(word) >= 0)
        return true;
    return isalpha((unsigned char)word[0]) && strpbrk(word, "0123456789") != NULL &&
           strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
               strlen(word) &&
           strncmp(word, "NV", 2) != 0;
}

static int find_device(const tt_matrix *m, const char *label)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->devices[i].label, label) == 0)
            return i;
    return -1;
}

static bool is_header(const parser *p)
{
    return p->n_words >= 1 && gpu_number(p->words[0]) >= 0 &&
           (p->n_words == 1 || gpu_number(p->words[1]) >= 0 || is_device(p->words[1]) ||
            strcmp(p->words[1], "CPU") == 0);
}

static tutti_status add_device(tt_matrix *m, const char *label)
{
    tt_matrix_device *device = &m->devices[m->n];

    device->gpu = gpu_number(label);
    (void)snprintf(device->label, sizeof device->label, "%s", label);
    (void)snprintf(device->name, sizeof device->name, "%s", label);
    m->n++;
    return TUTTI_OK;
}

static tutti_status start_links(parser *p, int devices)
{
    tt_matrix *m = &p->matrix;
    int gpus = 0;

    if (devices > TT_MATRIX_DEVICES)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: line %u: more than %d devices", p->name,
                       (unsigned)p->number, TT_MATRIX_DEVICES);
    TT_TRY(tt_calloc((size_t)devices, sizeof *m->devices, &m->devices));
    TT_TRY(tt_calloc((size_t)devices, (size_t)devices, &m->cells));
    for (int i = 0; i < devices; i++) {
        if (find_device(m, p->words[i]) >= 0)
            return tt_fail(TUTTI_ERR_CORRUPT, "%s: line %u: two columns are named %s", p->name,
                           (unsigned)p->number, p->words[i]);
        p->columns[i] = i;
        TT_TRY(add_device(m, p->words[i]));
        gpus += m->devices[i].gpu >= 0;
    }
    if (gpus > TT_TOPO_MAX_GPUS)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: line %u: more than %d GPUs", p->name,
                       (unsigned)p->number, TT_TOPO_MAX_GPUS);
    return TUTTI_OK;
}

static tutti_status start_p2p(parser *p, int devices)
{
    tt_matrix *m = &p->matrix;

    for (int i = 0; i < devices; i++)
        if ((p->columns[i] = gpu_number(p->words[i])) < 0 || p->columns[i] >= TT_TOPO_MAX_GPUS)
            return tt_fail(TUTTI_ERR_CORRUPT, "%s: line %u: a P2P table names %s", p->name,
                           (unsigned)p->number, p->words[i]);
    m->n_p2p = TT_TOPO_MAX_GPUS;
    return tt_calloc(TT_TOPO_MAX_GPUS, TT_TOPO_MAX_GPUS, &m->p2p);
}

static uint8_t p2p_word(const char *word)
{
    static const char *const words[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0)
            return (uint8_t)(TT_P2P_OK + i);
    return TT_P2P_UNKNOWN;
}

/* TT_SMI_UNKNOWN: no word of the table. */
static uint8_t link_word(const char *word)
{
    static const struct {
        const char *word;
        tt_smi smi;
    } words[] = {{"X", TT_SMI_X},     {"PIX", TT_SMI_PIX},   {"PXB", TT_SMI_PXB},
                 {"PHB", TT_SMI_PHB}, {"NODE", TT_SMI_NODE}, {"SYS", TT_SMI_SYS},
                 {"SOC", TT_SMI_SYS}};
    int links;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0)
            return (uint8_t)words[i].smi;
    if (strncmp(word, "NV", 2) != 0 || word[2] == 0 || strlen(word) > 4 ||
        strspn(word + 2, "0123456789") != strlen(word + 2))
        return TT_SMI_UNKNOWN;
    links = atoi(word + 2);
    return links < 1 ? TT_SMI_UNKNOWN : (uint8_t)(TT_SMI_NV + links);
}

/* Whether this line's cells are of a P2P table: known when the first row of a header is seen. */
static bool row_is_p2p(const parser *p)
{
    for (int i = 1; i < p->n_words; i++) {
        if (p2p_word(p->words[i]) != TT_P2P_UNKNOWN)
            return true;
        if (strcmp(p->words[i], "X") != 0 && strcmp(p->words[i], "U") != 0)
            return false;
    }
    return false;
}

/* Cells from word `at` on, as far as they are cells. */
static int count_cells(const parser *p, int at)
{
    int n = 0;

    while (at + n < p->n_words && link_word(p->words[at + n]) != TT_SMI_UNKNOWN)
        n++;
    return n;
}

/* The part of the line behind the given word, at the next tab or blanks. */
static const char *behind(const parser *p, int word)
{
    size_t at = (size_t)(p->words[word] - p->line);

    return p->whole + at + strcspn(p->whole + at, " \t");
}

static void trim_into(char *out, size_t bytes, const char *text, size_t length)
{
    while (length > 0 && strchr(" \t", *text) != NULL) {
        text++;
        length--;
    }
    while (length > 0 && strchr(" \t", text[length - 1]) != NULL)
        length--;
    if (length >= bytes)
        length = bytes - 1;
    memcpy(out, text, length);
    out[length] = 0;
    if (strcmp(out, "N/A") == 0)
        out[0] = 0;
}

/* CPU affinity, NUMA affinity, GPU NUMA ID: by tabs, where empty columns show, else by words. The
 * third column stands behind two tabs. */
static void read_tail(tt_matrix_device *device, const char *text)
{
    char *to[3] = {device->cpus, device->numa, device->memory_node};
    size_t bytes[3] = {sizeof device->cpus, sizeof device->numa, sizeof device->memory_node};
    bool tabs = strchr(text, '\t') != NULL;

    text += strspn(text, " ");
    if (tabs && *text == '\t')
        text++;
    for (int i = 0; i < 3; i++) {
        size_t length = strcspn(text, tabs ? "\t" : " ");

        trim_into(to[i], bytes[i], text, length);
        text += length;
        if (tabs && *text == '\t')
            text++;
        if (tabs && i == 1 && *text == '\t')
            text++;
        if (!tabs)
            text += strspn(text, " ");
    }
}

/* The row's X, which says how a row of the wrong length is to be taken; -1. */
static int find_x(const parser *p, int cells)
{
    for (int i = 0; i < cells; i++)
        if (strcmp(p->words[1 + i], "X") == 0)
            return i;
    return -1;
}

static tutti_status read_link_row(parser *p, int row)
{
    tt_matrix *m = &p->matrix;
    int cells = count_cells(p, 1), x = find_x(p, cells), extra = cells - p->n_columns, at = 1;

    m->devices[row].line = p->number;
    if (cells < p->n_columns && 1 + cells < p->n_words)
        TT_TRY(tt_topo_note_add(p->topo, 0, "line %u: \"%.20s\" is no kind of connection",
                                (unsigned)p->number, p->words[1 + cells]));
    if (extra > 0)
        TT_TRY(tt_topo_note_add(p->topo, 0, "line %u: %s has %d cells for %d columns",
                                (unsigned)p->number, m->devices[row].label, cells, p->n_columns));
    if (x >= 0 && x < p->n_columns && p->columns[x] != row)
        TT_TRY(tt_topo_note_add(p->topo, 0, "line %u: the X of %s stands below %s",
                                (unsigned)p->number, m->devices[row].label,
                                m->devices[p->columns[x]].label));
    for (int c = 0; c < p->n_columns && at < p->n_words; c++) {
        m->cells[(size_t)row * (size_t)m->n + (size_t)p->columns[c]] = link_word(p->words[at++]);
        if (c == x && extra > 0)
            at += extra;
    }
    if (cells >= p->n_columns)
        read_tail(&m->devices[row], behind(p, cells));
    return TUTTI_OK;
}

static void read_p2p_row(parser *p, int gpu)
{
    for (int c = 0; c < p->n_columns && 1 + c < p->n_words; c++)
        p->matrix.p2p[gpu * p->matrix.n_p2p + p->columns[c]] = p2p_word(p->words[1 + c]);
}

/* "NIC0: mlx5_0" */
static void read_legend(parser *p)
{
    size_t length = strlen(p->words[0]);
    int device;

    if (p->n_words != 2 || length < 2 || p->words[0][length - 1] != ':')
        return;
    p->words[0][length - 1] = 0;
    device = find_device(&p->matrix, p->words[0]);
    if (device >= 0 && p->matrix.devices[device].gpu < 0)
        (void)snprintf(p->matrix.devices[device].name, TT_TOPO_NAME, "%s", p->words[1]);
}

/* The header's line waits in `pending`, since only its first row tells which table it is. */
static tutti_status open_table(parser *p, const char *pending, uint32_t number)
{
    bool p2p = row_is_p2p(p);
    int devices = 0;

    if (p2p ? p->matrix.p2p != NULL : p->links_done) {
        p->open = false; /* a second table of the kind is not read */
        return TUTTI_OK;
    }
    memcpy(p->whole, pending, strlen(pending) + 1);
    p->number = number;
    split(p);
    while (devices < p->n_words && is_device(p->words[devices]))
        devices++;
    p->n_columns = devices;
    p->is_p2p = p2p;
    p->open = true;
    if (p2p)
        return start_p2p(p, devices);
    p->links_done = true;
    return start_links(p, devices);
}

static tutti_status read_row(parser *p)
{
    int row;

    if (p->is_p2p) {
        row = gpu_number(p->words[0]);
        if (row >= 0 && row < p->matrix.n_p2p)
            read_p2p_row(p, row);
        return TUTTI_OK;
    }
    row = find_device(&p->matrix, p->words[0]);
    if (row < 0 || p->matrix.devices[row].line != 0 || count_cells(p, 1) == 0) {
        read_legend(p);
        return TUTTI_OK;
    }
    return read_link_row(p, row);
}

static bool is_row(const parser *p)
{
    return p->n_words >= 2 && is_device(p->words[0]) &&
           (link_word(p->words[1]) != TT_SMI_UNKNOWN || p2p_word(p->words[1]) != TT_P2P_UNKNOWN);
}

static tutti_status read_lines(parser *p, const char *text, size_t bytes)
{
    char *pending, *row;
    uint32_t header = 0, number = 0;
    tutti_status status = TUTTI_OK;

    TT_TRY(tt_calloc(2, LINE_MAX_BYTES, &pending));
    row = pending + LINE_MAX_BYTES;
    for (size_t at = 0; at < bytes && status == TUTTI_OK;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end == NULL ? bytes - at : (size_t)(end - text) - at;

        number++;
        clean(text + at, length, p->whole);
        at += length + 1;
        split(p);
        if (p->n_words == 0)
            continue;
        if (is_header(p) && !is_row(p)) {
            memcpy(pending, p->whole, strlen(p->whole) + 1);
            header = number;
            p->open = false;
            continue;
        }
        if (header != 0 && is_row(p)) {
            memcpy(row, p->whole, strlen(p->whole) + 1);
            status = open_table(p, pending, header);
            memcpy(p->whole, row, strlen(row) + 1);
            split(p);
            header = 0;
        }
        p->number = number;
        if (status == TUTTI_OK && p->open)
            status = read_row(p);
    }
    free(pending);
    return status;
}

static void parser_free(parser *p)
{
    free(p->matrix.devices);
    free(p->matrix.cells);
    free(p->matrix.p2p);
    free(p);
}

static tutti_status read_tables(const char *name, const char *text, size_t bytes, tutti_topo *topo,
                                parser **parser_out)
{
    parser *p;
    tutti_status status;

    if (bytes > TEXT_MAX)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "%s: larger than %d MiB and no XML", name,
                       TEXT_MAX >> 20);
    TT_TRY(tt_calloc(1, sizeof *p, &p));
    p->name = name;
    p->topo = topo;
    status = read_lines(p, text, bytes);
    if (status != TUTTI_OK)
        goto free_parser;
    *parser_out = p;
    return TUTTI_OK;

free_parser:
    parser_free(p);
    return status;
}

/* A P2P table alone: its GPUs, of which nothing else is known. */
static tutti_status devices_of_p2p(tt_matrix *m)
{
    int gpus = 0;

    for (int g = 0; g < m->n_p2p; g++)
        for (int p = 0; p < m->n_p2p; p++)
            if (m->p2p[g * m->n_p2p + p] != TT_P2P_UNKNOWN && g + 1 > gpus)
                gpus = g + 1;
    TT_TRY(tt_calloc((size_t)gpus, sizeof *m->devices, &m->devices));
    TT_TRY(tt_calloc((size_t)gpus, (size_t)gpus, &m->cells));
    while (m->n < gpus) {
        char label[16];

        (void)snprintf(label, sizeof label, "GPU%d", m->n);
        TT_TRY(add_device(m, label));
    }
    return TUTTI_OK;
}

tutti_status tt_topo_read_matrix(const char *name, const char *text, size_t bytes,
                                 tutti_topo **topo_out)
{
    tutti_topo *topo;
    parser *p = NULL;
    tutti_status status;

    TT_TRY(tt_topo_new(TT_TOPO_MATRIX, name, &topo));
    status = read_tables(name, text, bytes, topo, &p);
    if (status != TUTTI_OK)
        goto close_topo;
    if (!p->links_done && p->matrix.p2p == NULL) {
        status = tt_fail(TUTTI_ERR_UNSUPPORTED,
                         "%s: neither XML nor a table of nvidia-smi topo (no line of device names "
                         "with rows below it)",
                         name);
        goto free_parser;
    }
    if (!p->links_done)
        status = devices_of_p2p(&p->matrix);
    if (status == TUTTI_OK)
        status = tt_matrix_build(&p->matrix, topo);
    if (status == TUTTI_OK) {
        *topo_out = topo;
        topo = NULL;
    }

free_parser:
    parser_free(p);
close_topo:
    tutti_topo_close(topo);
    return status;
}

tutti_status tt_topo_add_p2p(tutti_topo *topo, const char *name, const char *text, size_t bytes)
{
    tt_machine *m;
    parser *p;
    tutti_status status = TUTTI_OK;

    if (topo->n_machines != 1)
        return tt_fail(TUTTI_ERR_ARG, "%s: a P2P table is of one host, not %d", name,
                       topo->n_hosts);
    m = topo->machines[0];
    TT_TRY(read_tables(name, text, bytes, topo, &p));
    if (p->matrix.p2p == NULL) {
        status = tt_fail(TUTTI_ERR_UNSUPPORTED, "%s: no table of nvidia-smi topo -p2p", name);
        goto free_parser;
    }
    free(m->p2p);
    m->p2p = NULL;
    status = tt_calloc((size_t)m->n_gpus, (size_t)m->n_gpus, &m->p2p);
    for (int i = 0; i < m->n_gpus && status == TUTTI_OK; i++)
        for (int j = 0; j < m->n_gpus; j++) {
            int one = m->gpus[i].dev, two = m->gpus[j].dev;

            if (one < p->matrix.n_p2p && two < p->matrix.n_p2p)
                m->p2p[(size_t)i * (size_t)m->n_gpus + (size_t)j] =
                    p->matrix.p2p[one * p->matrix.n_p2p + two];
        }
    if (status == TUTTI_OK)
        status = tt_topo_seal(topo);

free_parser:
    parser_free(p);
    return status;
}
