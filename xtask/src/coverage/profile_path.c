/* Linked into every program that is measured: chooses the file of the counters.
 *
 * The runtime of LLVM takes the name from the environment when it starts. ringfence clears the
 * environment of the processes that it starts, so the program sets the variable itself, and removes
 * it again before anything else can see it. A program for which PROFILE_DIRECTORY is hidden, as for
 * most programs inside a sandbox, counts into nothing.
 *
 * "%m" is one file for each program. "%c" maps the file into the program, so that the kernel keeps
 * the counters of a process that is killed, and so that forked processes count, too. */

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define VARIABLE "LLVM_PROFILE_FILE"
/* The runtime sets this variable for the processes that the program starts. Tests of the variables
 * inside a sandbox would find it. */
#define RUNTIME_VARIABLE "__LLVM_PROFILE_RT_INIT_ONCE"

static mode_t mask;

/* Runs before the runtime starts, because constructors with a priority run first. */
__attribute__((constructor(101))) static void name_profile(void) {
    int is_writable = access(PROFILE_DIRECTORY, W_OK) == 0;
    setenv(VARIABLE, is_writable ? PROFILE_DIRECTORY "/%m%c.profraw" : "/dev/null", 1);
    /* Processes of several users count into the same file. */
    mask = umask(0);
}

/* Runs after the runtime has started, because this file is linked last. */
__attribute__((constructor)) static void forget_profile(void) {
    unsetenv(VARIABLE);
    unsetenv(RUNTIME_VARIABLE);
    umask(mask);
}
