/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/model.h"

/* Bytes of the character at `at` in UTF-8 that XML may have; 0: it is none. */
static int character(const unsigned char *at)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int bytes = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t code = bytes < 2 ? *at : *at & (0x7fu >> bytes);

    for (int i = 1; i < bytes; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    if (bytes == 0 || code < 0x20 || code == 0x7f || code < least[bytes] || code > 0x10ffff)
        return 0;
    return code >> 11 == 0x1b || code >> 1 == 0x7fff ? 0 : bytes;
}

void tt_text_clean(char *text)
{
    while (*text != 0) {
        int bytes = character((const unsigned char *)text);

        if (bytes == 0)
            *text = '?';
        text += bytes == 0 ? 1 : bytes;
    }
}
