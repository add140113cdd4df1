/* Writes signals as bytes to a pipe, which a daemon's event loop reads, without the interpreter.
 *
 * The next signal interrupts a handler in Python like any other code: many fast ones nest handlers until the
 * interpreter's stack overflows. Ignoring signals meanwhile is a race that Python itself reports as an error ("Signal
 * 15 ignored due to race condition"). Blocking the signals and waiting for them (sigwait, signalfd) needs the
 * cooperation of all threads, and those of other libraries (numpy's) do not cooperate. */
#include "fffs.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t target;

static void tell(int number)
{
    const uint8_t byte = (uint8_t)number;
    const int before = errno;

    ssize_t written = write(target, &byte, 1);

    (void)written; /* a full pipe wakes the reader, too */
    errno = before;
}

int fffs_signals_to(int fd, const int32_t *numbers, size_t count)
{
    struct sigaction action = {.sa_handler = tell, .sa_flags = SA_RESTART};

    target = fd;
    sigfillset(&action.sa_mask); /* one at a time */
    for (size_t i = 0; i < count; i++)
        if (sigaction(numbers[i], &action, NULL) < 0)
            return -errno;
    return 0;
}
