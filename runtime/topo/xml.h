/* SPDX-License-Identifier: Apache-2.0 */
/* A small document tree over expat, for descriptions that may come from anyone: declarations
 * inside are refused, depth, elements and bytes of text are capped. */
#ifndef TT_TOPO_XML_H
#define TT_TOPO_XML_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct tt_xml tt_xml;
typedef struct tt_xml_node {
    uint32_t name, text; /* offsets of strings; text: character data, blanks kept */
    int32_t parent, child, next; /* elements; -1 */
    uint32_t attrs, n_attrs;
    uint32_t line;
} tt_xml_node;

/* `name` is the file's in messages. Errors: CORRUPT (with the line), NO_MEMORY. The caller frees.
 */
tutti_status tt_xml_parse(const char *name, const char *text, size_t bytes, tt_xml **xml_out);
void tt_xml_free(tt_xml *xml);

/* Element 0 is the root; they are numbered in document order. */
int32_t tt_xml_count(const tt_xml *xml);
const tt_xml_node *tt_xml_at(const tt_xml *xml, int32_t node);
const char *tt_xml_name(const tt_xml *xml, int32_t node);
const char *tt_xml_text(const tt_xml *xml, int32_t node);
/* The attribute's value, or NULL. */
const char *tt_xml_attr(const tt_xml *xml, int32_t node, const char *key);
/* The first child, or the next sibling, of this name; -1. */
int32_t tt_xml_child(const tt_xml *xml, int32_t node, const char *name);
int32_t tt_xml_next(const tt_xml *xml, int32_t node, const char *name);
const char *tt_xml_file(const tt_xml *xml);

/* Bounds of a number, and its value where the attribute is not there or empty. */
typedef struct tt_xml_range {
    long long low, high, absent;
} tt_xml_range;

/* An attribute as a number: decimal, or 0x. CORRUPT with file, line and what, also when it is out
 * of the range. */
tutti_status tt_xml_int(const tt_xml *xml, int32_t node, const char *key, tt_xml_range range,
                        long long *value_out);

/* Fails with file and line of an element in front. */
#define tt_xml_fail(xml, node, fmt, ...)                                                           \
    tt_fail(TUTTI_ERR_CORRUPT, "%s: line %u: " fmt, tt_xml_file(xml),                              \
            (unsigned)tt_xml_at((xml), (node))->line, __VA_ARGS__)

#endif
