/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging: TUTTI_LOG=warn,coll:trace and TUTTI_LOG_FILE=%h.%r.log. Line: [host r3/8 +1.204s] coll:
 * text. Lower case, "rank 3" not "rank=3", the cause and not the guess, once, where it is decided.
 * The level is tested before the arguments; errno is kept.
 */
#ifndef TT_CORE_LOG_H
#define TT_CORE_LOG_H

#include <stdbool.h>

#include "core/status.h"

typedef enum tt_log_level {
    TT_LOG_ERROR,
    TT_LOG_WARN,
    TT_LOG_INFO,
    TT_LOG_DEBUG,
    TT_LOG_TRACE
} tt_log_level;
typedef enum tt_log_subsys {
    TT_CORE,
    TT_BOOT,
    TT_DEV,
    TT_TOPO,
    TT_COLL,
    TT_RED,
    TT_CKPT,
    TT_TRACE,
    TT_SUBSYS_COUNT
} tt_log_subsys;

/* "warn,coll:trace" into a level for each subsystem; ARG if malformed. */
tutti_status tt_log_parse(const char *text, int levels_out[TT_SUBSYS_COUNT]);
/* Reads TUTTI_LOG and TUTTI_LOG_FILE anew; a malformed TUTTI_LOG counts as its default. The first
 * line logged does this too. */
void tt_log_reload(void);

bool tt_log_on(tt_log_level level, tt_log_subsys subsys);
void tt_log_write(tt_log_level level, tt_log_subsys subsys, const char *fmt, ...) TT_PRINTF(3, 4);

/* Who the calling thread logs as, from tutti_init on ("r3/8"); inherited by no other thread, so
 * worker threads set it too. */
void tt_log_identity(int rank, int size);
void tt_log_identity_get(int *rank_out, int *size_out);

#define tt_log_at(level, subsys, ...)                                                              \
    do {                                                                                           \
        if (tt_log_on((level), (subsys)))                                                          \
            tt_log_write((level), (subsys), __VA_ARGS__);                                          \
    } while (0)
#define tt_log_error(subsys, ...) tt_log_at(TT_LOG_ERROR, subsys, __VA_ARGS__)
#define tt_log_warn(subsys, ...) tt_log_at(TT_LOG_WARN, subsys, __VA_ARGS__)
#define tt_log_info(subsys, ...) tt_log_at(TT_LOG_INFO, subsys, __VA_ARGS__)
#define tt_log_debug(subsys, ...) tt_log_at(TT_LOG_DEBUG, subsys, __VA_ARGS__)
#define tt_log_trace(subsys, ...) tt_log_at(TT_LOG_TRACE, subsys, __VA_ARGS__)

#endif
