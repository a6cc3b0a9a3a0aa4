/* Stands before the compiler of the crates of the workspace, and adds the flags of coverage.
 *
 * A shell script would not do, because dash(1) drops variables of the environment whose names
 * contain a dash, such as CARGO_BIN_EXE_ringfence-guest. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The second flag lets the runtime of LLVM map the counters to a file. */
static char *const FLAGS[] = {
    "-C", "instrument-coverage",
    "-C", "llvm-args=-runtime-counter-relocation",
    "-C", "link-arg=" PROFILE_PATH_OBJECT,
};

int main(int count, char **words) {
    size_t given = (size_t)count - 1;
    size_t added = sizeof FLAGS / sizeof *FLAGS;
    char **command = calloc(given + added + 1, sizeof *command);
    if (count < 2 || command == NULL) {
        return 2;
    }
    memcpy(command, words + 1, given * sizeof *command);
    memcpy(command + given, FLAGS, sizeof FLAGS);
    execvp(command[0], command);
    perror(command[0]);
    return 127;
}
