/* SPDX-License-Identifier: Apache-2.0 */
/* Version numbers: of these headers as macros, of the loaded library by call. */
#ifndef TUTTI_VERSION_H
#define TUTTI_VERSION_H

#include "tutti/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0
#define TUTTI_VERSION_STRING "0.1.0"

/*
 * The version of the loaded library, such as "0.1.0".
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API const char *tutti_version(void);

#ifdef __cplusplus
}
#endif
#endif
