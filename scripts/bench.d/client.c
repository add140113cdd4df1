/* The program that uses a file system to measure it, with little overhead. Compiled and run by mounts.py.
 *
 *     client read LIST PROCESSES    reads each file in LIST (one name per line) completely, once
 *     client walk FOLDER            lists everything below FOLDER, and calls stat for each entry
 *
 * Prints the seconds, the number of files or entries, and their size in bytes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, PROCESSES_MAX = 256 };

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t read_file(const char *path, char *buffer)
{
    int fd = open(path, O_RDONLY);
    struct stat stat;
    off_t done = 0;

    if (fd < 0 || fstat(fd, &stat) != 0)
        err(1, "%s", path);
    while (done < stat.st_size) {
        ssize_t got = read(fd, buffer, BUFFER);

        if (got <= 0)
            err(1, "%s", path);
        done += got;
    }
    close(fd);
    return (uint64_t)done;
}

/* Returns the lines of a file, each terminated by NUL. */
static char **load_list(const char *path, size_t *count)
{
    FILE *file = fopen(path, "r");
    size_t room = 0;
    char **lines = NULL, *line = NULL;

    if (!file)
        err(1, "%s", path);
    *count = 0;
    for (ssize_t length; (length = getline(&line, &room, file)) > 0;) {
        if (*count % 1024 == 0 && !(lines = realloc(lines, (*count + 1024) * sizeof *lines)))
            err(1, "memory");
        line[strcspn(line, "\n")] = 0;
        if (!(lines[(*count)++] = strdup(line)))
            err(1, "memory");
    }
    free(line);
    fclose(file);
    return lines;
}

/* Reads every processes-th file, beginning with number first. */
static uint64_t read_share(char **paths, size_t count, int first, int processes, char *buffer)
{
    uint64_t bytes = 0;

    for (size_t i = (size_t)first; i < count; i += (size_t)processes)
        bytes += read_file(paths[i], buffer);
    return bytes;
}

static int read_all(const char *list, int processes)
{
    size_t count;
    char **paths = load_list(list, &count), *buffer = malloc(BUFFER);
    uint64_t *bytes = mmap(NULL, PROCESSES_MAX * sizeof *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0, status;

    if (!buffer || bytes == MAP_FAILED || processes < 1 || processes > PROCESSES_MAX)
        errx(1, "cannot read with %d processes", processes);
    memset(buffer, 1, BUFFER); /* avoids page faults later */
    double start = now();
    for (int i = 1; i < processes; i++) {
        pid_t child = fork();

        if (child < 0)
            err(1, "fork");
        if (child == 0) {
            bytes[i] = read_share(paths, count, i, processes, buffer);
            _exit(0);
        }
    }
    bytes[0] = read_share(paths, count, 0, processes, buffer);
    while (wait(&status) > 0)
        failed |= status != 0;
    double taken = now() - start;
    for (int i = 1; i < processes; i++)
        bytes[0] += bytes[i];
    printf("%.9f %zu %llu\n", taken, count, (unsigned long long)bytes[0]);
    return failed;
}

static void walk(int at, const char *name, uint64_t *entries, uint64_t *bytes)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);

    if (!folder)
        err(1, "%s", name);
    for (struct dirent *entry; (entry = readdir(folder));) {
        struct stat stat;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(fd, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
            err(1, "%s", entry->d_name);
        ++*entries;
        if (S_ISDIR(stat.st_mode))
            walk(fd, entry->d_name, entries, bytes);
        else
            *bytes += (uint64_t)stat.st_size;
    }
    closedir(folder);
}

int main(int count, char **arguments)
{
    uint64_t entries = 0, bytes = 0;

    if (count == 4 && strcmp(arguments[1], "read") == 0)
        return read_all(arguments[2], atoi(arguments[3]));
    if (count != 3 || strcmp(arguments[1], "walk") != 0)
        errx(2, "usage: client read LIST PROCESSES | client walk FOLDER");
    double start = now();
    walk(AT_FDCWD, arguments[2], &entries, &bytes);
    printf("%.9f %llu %llu\n", now() - start, (unsigned long long)entries, (unsigned long long)bytes);
    return 0;
}
