/* Asking the kernel about one's own mount, so that the process can still be killed.
 *
 * A thread that waits for the answer to a request which the daemon has taken cannot be killed, and keeps open what
 * the process has open: the connection, too, whose end would be the only answer. The process would stay for ever, and
 * so would everybody who asks after it. A thread with descriptors of its own, and none of them, keeps nothing open.
 */
#include "fffs.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { UNSHARE = 2 }; /* CLOSE_RANGE_UNSHARE, which older headers lack */

typedef struct {
    const char *path;
    int status;
} question;

static void *ask(void *argument)
{
    question *asked = argument;
    struct stat answer;

    /* Where a sandbox or an old kernel (before 5.9) forbids it, all goes well but for a kill at this moment. */
    syscall(SYS_close_range, 0U, UINT_MAX, UNSHARE);
    asked->status = stat(asked->path, &answer) == 0 ? 0 : -errno;
    return NULL;
}

int fffs_stat_apart(const char *path)
{
    question asked = {.path = path};
    pthread_t thread;
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, NULL, ask, &asked);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return -failed;
    pthread_join(thread, NULL);
    return asked.status;
}
