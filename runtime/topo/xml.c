/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements, attributes and strings lie in three growing arrays; an element is an index. expat
 * parses and this file only records, stopping the parser at the first thing that is too much: 64
 * levels, 262,144 elements, 64 MiB of strings. Any entity declaration stops it too, so nothing
 * expands.
 *
 * Children are linked at the end of their parent's list through `last`, which only exists while
 * parsing, so that a wide element costs no more than a deep one.
 */
#include "topo/xml.h"

#include <errno.h>
#include <expat.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { DEPTH_MAX = 64, NODES_MAX = 1 << 18, ATTRS_MAX = 1 << 20, STRINGS_MAX = 64 << 20 };

typedef struct attr {
    uint32_t key, value;
} attr;

struct tt_xml {
    char *file;
    tt_xml_node *nodes;
    attr *attrs;
    char *strings;
    size_t n_nodes, cap_nodes, n_attrs, cap_attrs, n_strings, cap_strings;
};

typedef struct reading {
    tt_xml *xml;
    XML_Parser parser;
    int32_t open[DEPTH_MAX], last[DEPTH_MAX]; /* open elements, and the last child of each */
    int depth;
    tutti_status status;
} reading;

static void stop(reading *r, tutti_status status)
{
    r->status = status;
    (void)XML_StopParser(r->parser, XML_FALSE);
}

static void stop_because(reading *r, const char *why)
{
    stop(r, tt_fail(TUTTI_ERR_CORRUPT, "%s: line %lu: %s", r->xml->file,
                    (unsigned long)XML_GetCurrentLineNumber(r->parser), why));
}

static tutti_status put(tt_xml *xml, const char *text, size_t length, uint32_t *at_out)
{
    if (length >= STRINGS_MAX - xml->n_strings)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: more than %d bytes of text", xml->file, STRINGS_MAX);
    TT_TRY(tt_grow(&xml->strings, &xml->cap_strings, xml->n_strings + length + 1, 1));
    memcpy(xml->strings + xml->n_strings, text, length);
    xml->strings[xml->n_strings + length] = 0;
    *at_out = (uint32_t)xml->n_strings;
    xml->n_strings += length + 1;
    return TUTTI_OK;
}

static tutti_status add_attrs(tt_xml *xml, tt_xml_node *node, const XML_Char **attrs)
{
    node->attrs = (uint32_t)xml->n_attrs;
    for (; *attrs != NULL; attrs += 2) {
        attr *to;

        if (xml->n_attrs == ATTRS_MAX)
            return tt_fail(TUTTI_ERR_CORRUPT, "%s: more than %d attributes", xml->file, ATTRS_MAX);
        TT_TRY(tt_grow(&xml->attrs, &xml->cap_attrs, xml->n_attrs + 1, sizeof *xml->attrs));
        to = &xml->attrs[xml->n_attrs];
        TT_TRY(put(xml, attrs[0], strlen(attrs[0]), &to->key));
        TT_TRY(put(xml, attrs[1], strlen(attrs[1]), &to->value));
        xml->n_attrs++;
        node->n_attrs++;
    }
    return TUTTI_OK;
}

static tutti_status add_node(reading *r, const XML_Char *name, const XML_Char **attrs)
{
    tt_xml *xml = r->xml;
    int32_t at = (int32_t)xml->n_nodes;
    tt_xml_node node = {.parent = -1, .child = -1, .next = -1};

    node.line = (uint32_t)XML_GetCurrentLineNumber(r->parser);
    TT_TRY(put(xml, name, strlen(name), &node.name));
    TT_TRY(add_attrs(xml, &node, attrs));
    TT_TRY(tt_grow(&xml->nodes, &xml->cap_nodes, xml->n_nodes + 1, sizeof *xml->nodes));
    if (r->depth > 0) {
        int32_t *last = &r->last[r->depth - 1];

        node.parent = r->open[r->depth - 1];
        if (*last < 0)
            xml->nodes[node.parent].child = at;
        else
            xml->nodes[*last].next = at;
        *last = at;
    }
    xml->nodes[xml->n_nodes++] = node;
    r->open[r->depth] = at;
    r->last[r->depth] = -1;
    r->depth++;
    return TUTTI_OK;
}

static void on_start(void *data, const XML_Char *name, const XML_Char **attrs)
{
    reading *r = data;
    tutti_status status;

    if (r->status != TUTTI_OK)
        return;
    if (r->depth == DEPTH_MAX) {
        stop_because(r, "elements are nested too deep");
        return;
    }
    if (r->xml->n_nodes == NODES_MAX) {
        stop_because(r, "too many elements");
        return;
    }
    status = add_node(r, name, attrs);
    if (status != TUTTI_OK)
        stop(r, status);
}

static void on_end(void *data, const XML_Char *name)
{
    reading *r = data;

    (void)name;
    if (r->status == TUTTI_OK)
        r->depth--;
}

/* Text of an element whose end has not come: kept if it is the last string, that is, if no child
 * came in between, which is all that the formats use. */
static void on_text(void *data, const XML_Char *text, int length)
{
    reading *r = data;
    tt_xml *xml = r->xml;
    tt_xml_node *node;
    tutti_status status;

    if (r->status != TUTTI_OK || r->depth == 0)
        return;
    node = &xml->nodes[r->open[r->depth - 1]];
    if (node->text != 0 && node->text + strlen(xml->strings + node->text) + 1 == xml->n_strings) {
        uint32_t unused;

        xml->n_strings--; /* the terminating zero: the text goes on */
        status = put(xml, text, (size_t)length, &unused);
    } else if (node->child < 0 && node->text == 0) {
        status = put(xml, text, (size_t)length, &node->text);
    } else {
        return;
    }
    if (status != TUTTI_OK)
        stop(r, status);
}

/* Only what is declared inside the file could declare entities; a name of a DTD is not followed. */
static void on_doctype(void *data, const XML_Char *name, const XML_Char *system,
                       const XML_Char *public, int has_inside)
{
    (void)name;
    (void)system;
    (void)public;
    if (has_inside)
        stop_because(data, "it declares entities or a DTD, which no topology does");
}

static tutti_status parse(reading *r, const char *text, size_t bytes)
{
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_start, on_end);
    XML_SetCharacterDataHandler(r->parser, on_text);
    XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
    if (bytes > INT_MAX)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: too large", r->xml->file);
    if (XML_Parse(r->parser, text, (int)bytes, XML_TRUE) == XML_STATUS_OK)
        return r->status;
    if (r->status != TUTTI_OK)
        return r->status;
    if (XML_GetErrorCode(r->parser) == XML_ERROR_NO_MEMORY)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "%s: out of memory", r->xml->file);
    return tt_fail(TUTTI_ERR_CORRUPT, "%s: line %lu: not well-formed XML: %s", r->xml->file,
                   (unsigned long)XML_GetCurrentLineNumber(r->parser),
                   XML_ErrorString(XML_GetErrorCode(r->parser)));
}

void tt_xml_free(tt_xml *xml)
{
    if (xml == NULL)
        return;
    free(xml->file);
    free(xml->nodes);
    free(xml->attrs);
    free(xml->strings);
    free(xml);
}

tutti_status tt_xml_parse(const char *name, const char *text, size_t bytes, tt_xml **xml_out)
{
    tt_xml *xml;
    reading r = {.status = TUTTI_OK};
    uint32_t empty;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *xml, &xml));
    status = tt_strdup(name, &xml->file);
    if (status == TUTTI_OK)
        status = put(xml, "", 0, &empty); /* offset 0: no text */
    if (status != TUTTI_OK)
        goto free_xml;
    r.xml = xml;
    r.parser = XML_ParserCreate(NULL);
    if (r.parser == NULL) {
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "%s: out of memory", name);
        goto free_xml;
    }
    status = parse(&r, text, bytes);
    XML_ParserFree(r.parser);
    if (status != TUTTI_OK)
        goto free_xml;
    *xml_out = xml;
    return TUTTI_OK;

free_xml:
    tt_xml_free(xml);
    return status;
}

const tt_xml_node *tt_xml_at(const tt_xml *xml, int32_t node)
{
    return &xml->nodes[node];
}

int32_t tt_xml_count(const tt_xml *xml)
{
    return (int32_t)xml->n_nodes;
}

const char *tt_xml_name(const tt_xml *xml, int32_t node)
{
    return xml->strings + xml->nodes[node].name;
}

const char *tt_xml_text(const tt_xml *xml, int32_t node)
{
    return xml->strings + xml->nodes[node].text;
}

const char *tt_xml_file(const tt_xml *xml)
{
    return xml->file;
}

const char *tt_xml_attr(const tt_xml *xml, int32_t node, const char *key)
{
    const tt_xml_node *n = &xml->nodes[node];

    for (uint32_t i = n->attrs; i < n->attrs + n->n_attrs; i++)
        if (strcmp(xml->strings + xml->attrs[i].key, key) == 0)
            return xml->strings + xml->attrs[i].value;
    return NULL;
}

int32_t tt_xml_child(const tt_xml *xml, int32_t node, const char *name)
{
    int32_t child = xml->nodes[node].child;

    return child < 0 || strcmp(tt_xml_name(xml, child), name) == 0 ? child
                                                                   : tt_xml_next(xml, child, name);
}

int32_t tt_xml_next(const tt_xml *xml, int32_t node, const char *name)
{
    do
        node = xml->nodes[node].next;
    while (node >= 0 && strcmp(tt_xml_name(xml, node), name) != 0);
    return node;
}

tutti_status tt_xml_int(const tt_xml *xml, int32_t node, const char *key, tt_xml_range range,
                        long long *value_out)
{
    const char *text = tt_xml_attr(xml, node, key);
    char *end;
    long long value;

    if (text == NULL || *text == 0) {
        *value_out = range.absent;
        return TUTTI_OK;
    }
    errno = 0;
    value = strtoll(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    if (*end == '.' && strspn(end + 1, "0") == strlen(end + 1)) /* 100000.0 */
        end += strlen(end);
    if (errno != 0 || *end != 0 || value < range.low || value > range.high)
        return tt_xml_fail(xml, node, "%s=\"%.40s\" is no number from %lld to %lld", key, text,
                           range.low, range.high);
    *value_out = value;
    return TUTTI_OK;
}
