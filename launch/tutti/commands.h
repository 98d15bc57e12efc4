/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `tutti`. Each has a file here and a row in main.c; argv[0] is its own name. */
#ifndef TUTTI_COMMANDS_H
#define TUTTI_COMMANDS_H

enum { EXIT_USAGE = 2 };

int command_bench(int argc, char **argv); /* benchmarks/command.c */
int command_ckpt(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_env(int argc, char **argv);
int command_topo(int argc, char **argv);

#endif
