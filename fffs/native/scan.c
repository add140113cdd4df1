/* Lists folders with the status of everything in them, for packing: columns that grow by a folder at a time. */
#include "descriptor.h"
#include "grow.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes of names that getdents64(2) returns at a time, at least. */
enum { ROOM = 1 << 16 };

/* The inode number of the empty folders that Btrfs shows in place of subvolumes which a snapshot does not contain. */
enum { PLACE_OF_SUBVOLUME = 2 };

/* Of the kernel, which documents it in getdents(2). */
struct dirent64 {
    uint64_t inode;
    int64_t offset;
    uint16_t length; /* of this structure with the name */
    uint8_t type;
    char name[];
};

/* A name in the buffer of a folder that is being listed. */
struct item {
    const char *name;
    uint64_t inode;
    uint32_t length;
    uint32_t place; /* in the order of names */
};

struct fffs_scan {
    fffs_scan_columns columns; /* owned */
    size_t entries_room, names_room, targets_room;
    char *raw; /* owned: the names of a folder as the kernel returns them */
    size_t raw_room;
    struct item *items; /* owned */
    size_t items_room;
};

/* Makes room for count more entries. Returns 0, -ENOMEM or -EOVERFLOW. */
static int grow_entries(fffs_scan *scan, size_t count)
{
    fffs_scan_columns *columns = &scan->columns;
    size_t wanted = columns->entries + count;

    if (wanted >= FFFS_UNSET)
        return -EOVERFLOW;
    if (wanted <= scan->entries_room)
        return 0;
    size_t room = fffs_next_room(scan->entries_room, wanted);
    if (fffs_resize(&columns->parents, room * sizeof *columns->parents) ||
        fffs_resize(&columns->statuses, room * sizeof *columns->statuses) ||
        fffs_resize(&columns->name_offsets, (room + 1) * sizeof *columns->name_offsets))
        return -ENOMEM;
    scan->entries_room = room;
    return 0;
}

/* ---------------------------------------------------------------- the names of a folder */

static int is_in(const fffs_name_range *range, const uint8_t *name, size_t size)
{
    return fffs_compare_names(name, size, range->first, range->first_size) >= 0 &&
           (!range->stop_size || fffs_compare_names(name, size, range->stop, range->stop_size) < 0);
}

/* Reads the names of an open folder that are in the range. Returns their number or -errno. */
static int64_t read_names(fffs_scan *scan, int fd, const fffs_name_range *range)
{
    size_t used = 0;

    if (lseek(fd, 0, SEEK_SET) < 0)
        return -errno;
    for (;;) {
        int status = fffs_grow(&scan->raw, &scan->raw_room, used + ROOM, 1);

        if (status)
            return status;
        long got = syscall(SYS_getdents64, fd, scan->raw + used, scan->raw_room - used);
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    size_t count = 0;
    for (size_t at = 0; at < used;) {
        const struct dirent64 *entry = (const void *)(scan->raw + at);
        size_t length = strlen(entry->name);

        at += entry->length;
        if (length <= 2 && memcmp(entry->name, "..", length) == 0)
            continue;
        if (!is_in(range, (const uint8_t *)entry->name, length))
            continue;
        int status = fffs_grow(&scan->items, &scan->items_room, count + 1, sizeof *scan->items);
        if (status)
            return status;
        scan->items[count++] = (struct item){.name = entry->name, .inode = entry->inode, .length = (uint32_t)length};
    }
    return (int64_t)count;
}

static int by_name(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    return fffs_compare_names((const uint8_t *)x->name, x->length, (const uint8_t *)y->name, y->length);
}

/* Status is asked for in the order of inodes: they lie in this order on disks, names in that of their hashes. */
static int by_inode(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    return x->inode < y->inode ? -1 : x->inode > y->inode;
}

/* ---------------------------------------------------------------- status */

static void fill_status(fffs_status *status, const struct stat *found)
{
    *status = (fffs_status){
        .mtime = found->st_mtim.tv_sec,
        .ctime = found->st_ctim.tv_sec,
        .mtime_ns = (uint32_t)found->st_mtim.tv_nsec,
        .ctime_ns = (uint32_t)found->st_ctim.tv_nsec,
        .device = found->st_dev,
        .inode = found->st_ino,
        .size = found->st_size,
        .mode = found->st_mode,
        .links = found->st_nlink < UINT32_MAX ? (uint32_t)found->st_nlink : UINT32_MAX,
    };
}

static bool may_stand_for_subvolume(const struct stat *found)
{
    return found->st_ino == PLACE_OF_SUBVOLUME && S_ISDIR(found->st_mode);
}

/* Stores the status of an open folder. One that stands for a subvolume has no times of its own: it shows those of the
 * call that asks, so it gets the time 0. Returns 0 or -errno. */
static int ask_status(int fd, fffs_status *status)
{
    struct stat found;

    if (fstat(fd, &found) != 0)
        return -errno;
    if (may_stand_for_subvolume(&found) && fffs_file_system(fd) == BTRFS_SUPER_MAGIC)
        found.st_mtim = found.st_ctim = (struct timespec){0};
    fill_status(status, &found);
    return 0;
}

/* Stores the status of an entry of the folder fd, or the error. */
static void ask_status_at(int fd, const char *name, fffs_status *status)
{
    struct stat found;

    if (fstatat(fd, name, &found, AT_SYMLINK_NOFOLLOW) != 0) {
        *status = (fffs_status){.error = -errno};
        return;
    }
    fill_status(status, &found);
    if (!may_stand_for_subvolume(&found))
        return;
    int child = fffs_above_standard(openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    int failed = child < 0 ? child : ask_status(child, status);
    if (child >= 0)
        close(child);
    if (failed)
        *status = (fffs_status){.error = failed};
}

/* Copies the name of an entry with a zero byte. Returns false if it is too long. */
static bool copy_name(const fffs_scan *scan, uint64_t entry, char name[static FFFS_NAME_MAX + 1])
{
    const fffs_scan_columns *columns = &scan->columns;
    uint32_t begin = columns->name_offsets[entry], size = columns->name_offsets[entry + 1] - begin;

    if (size > FFFS_NAME_MAX)
        return false;
    memcpy(name, columns->names + begin, size);
    name[size] = 0;
    return true;
}

/* Appends the target of a symbolic link. Returns 0 or -ENOMEM; the status has any other error. */
static int append_target(fffs_scan *scan, int fd, const char *name, fffs_status *status)
{
    fffs_scan_columns *columns = &scan->columns;
    const size_t most = FFFS_TARGET_MAX + 1;

    if (fffs_grow(&columns->targets, &scan->targets_room, columns->targets_size + most, 1))
        return -ENOMEM;
    ssize_t length = readlinkat(fd, name, (char *)columns->targets + columns->targets_size, most);
    if (length < 0) {
        status->error = -errno;
        return 0;
    }
    status->target = (uint32_t)length;
    columns->targets_size += status->target;
    return 0;
}

/* Appends the targets of the symbolic links among the entries from base on. */
static int append_targets(fffs_scan *scan, int fd, uint64_t base)
{
    const fffs_scan_columns *columns = &scan->columns;
    char name[FFFS_NAME_MAX + 1];

    for (uint64_t i = base; i < columns->entries; i++) {
        if (!S_ISLNK(columns->statuses[i].mode) || !copy_name(scan, i, name)) /* trees refuse so long a name */
            continue;
        if (append_target(scan, fd, name, &columns->statuses[i]))
            return -ENOMEM;
    }
    return 0;
}

/* Appends count listed names with their status. */
static int append(fffs_scan *scan, int fd, uint32_t parent, size_t count)
{
    fffs_scan_columns *columns = &scan->columns;
    uint64_t base = columns->entries;
    size_t used = columns->name_offsets[base];

    qsort(scan->items, count, sizeof *scan->items, by_name);
    for (size_t i = 0; i < count; i++) {
        struct item *item = &scan->items[i];

        if (fffs_grow(&columns->names, &scan->names_room, used + item->length, 1))
            return -ENOMEM;
        memcpy(columns->names + used, item->name, item->length);
        used += item->length;
        if (used > UINT32_MAX)
            return -EOVERFLOW;
        item->place = (uint32_t)i;
        columns->parents[base + i] = parent;
        columns->name_offsets[base + i + 1] = (uint32_t)used;
    }
    qsort(scan->items, count, sizeof *scan->items, by_inode);
    for (size_t i = 0; i < count; i++)
        ask_status_at(fd, scan->items[i].name, &columns->statuses[base + scan->items[i].place]);
    columns->entries = base + count;
    return append_targets(scan, fd, base);
}

/* ---------------------------------------------------------------- the interface */

int fffs_scan_new(fffs_scan **scan)
{
    fffs_scan *made = fffs_allocate_zeroed(1, sizeof *made);

    if (!made)
        return -ENOMEM;
    made->columns.name_offsets = fffs_allocate_zeroed(1, sizeof *made->columns.name_offsets);
    if (!made->columns.name_offsets) {
        free(made);
        return -ENOMEM;
    }
    *scan = made;
    return 0;
}

int fffs_scan_folder(fffs_scan *scan, int fd, uint32_t node, const fffs_name_range *range, fffs_status *status)
{
    int failed = ask_status(fd, status);

    if (failed)
        return failed;
    int64_t count = read_names(scan, fd, range);
    if (count <= 0)
        return (int)count;
    failed = grow_entries(scan, (size_t)count);
    return failed ? failed : append(scan, fd, node, (size_t)count);
}

/* Lists one folder that is an entry of parent. Returns NULL if that fails. */
static fffs_scan *list_child(const fffs_scan *parent, uint64_t entry, int fd, fffs_status *status)
{
    const fffs_name_range all = {.first = (const uint8_t *)"", .stop = (const uint8_t *)""};
    fffs_scan *scan;
    char name[FFFS_NAME_MAX + 1];

    if (!copy_name(parent, entry, name) || fffs_scan_new(&scan) != 0)
        return NULL;
    int child = fffs_above_standard(openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    int failed = child < 0 ? child : fffs_scan_folder(scan, child, 0, &all, status);
    if (child >= 0)
        close(child);
    if (!failed)
        return scan;
    fffs_scan_free(scan);
    return NULL;
}

void fffs_scan_children(const fffs_scan *parent, const uint32_t *entries, uint64_t count, int fd,
                        fffs_child *children)
{
    for (uint64_t k = 0; k < count; k++) {
        fffs_child *child = &children[k];

        *child = (fffs_child){0};
        child->scan = list_child(parent, entries[k], fd, &child->status);
        if (!child->scan)
            continue;
        const fffs_scan_columns *columns = &child->scan->columns;
        child->entries = columns->entries;
        child->names_size = columns->name_offsets[columns->entries];
        for (uint64_t i = 0; i < columns->entries; i++) {
            child->folders += S_ISDIR(columns->statuses[i].mode);
            child->failures += columns->statuses[i].error != 0;
        }
    }
}

uint64_t fffs_scan_next_folder(const fffs_scan *scan, uint64_t from, uint64_t to)
{
    while (from < to && !S_ISDIR(scan->columns.statuses[from].mode))
        from++;
    return from;
}

/* The digest of a number after another: the finaliser of splitmix64, so that sums of digests rarely agree by chance. */
static uint64_t mix(uint64_t digest, uint64_t number)
{
    uint64_t z = (digest ^ number) + 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Returns the digest of the path of an entry, and sets *all to that of the entry. */
static uint64_t digest_entry(const fffs_scan_columns *columns, uint64_t entry, uint64_t folder, uint64_t *all)
{
    const fffs_status *status = &columns->statuses[entry];
    uint64_t name = 0xcbf29ce484222325u; /* FNV-1a */

    for (uint32_t at = columns->name_offsets[entry]; at < columns->name_offsets[entry + 1]; at++)
        name = (name ^ columns->names[at]) * 0x100000001b3u;
    uint64_t path = mix(folder, name);
    *all = mix(mix(mix(path, status->mode), (uint64_t)status->mtime), status->mtime_ns);
    *all = mix(*all, S_ISDIR(status->mode) ? 0 : (uint64_t)status->size);
    return path;
}

void fffs_scan_digest(const fffs_scan *scan, uint64_t from, uint64_t to, uint64_t folder, uint64_t *paths,
                      uint64_t *digests)
{
    for (uint64_t i = from; i < to; i++)
        paths[i - from] = digest_entry(&scan->columns, i, folder, &digests[i - from]);
}

/* Sets what an entry weighs. */
static void weigh_entry(const fffs_status *status, int64_t each, int64_t *size, int64_t *weight)
{
    uint32_t mode = status->mode;

    *size = S_ISREG(mode) ? status->size : 0;
    *weight = *size + (S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) ? each : 0);
}

void fffs_scan_weigh(const fffs_scan *scan, int64_t each, int64_t *sizes, int64_t *weights, uint32_t *folders,
                     fffs_weighed *found)
{
    *found = (fffs_weighed){0};
    for (uint64_t i = 0; i < scan->columns.entries; i++) {
        const fffs_status *status = &scan->columns.statuses[i];

        weigh_entry(status, each, &sizes[i], &weights[i]);
        if (S_ISDIR(status->mode))
            folders[found->folders++] = (uint32_t)i;
        found->failures += status->error != 0;
    }
}

/* Appends the name of an entry to paths, and returns the end. */
static int64_t append_name(const fffs_scan *scan, uint64_t entry, uint8_t *paths, int64_t end)
{
    const fffs_scan_columns *columns = &scan->columns;
    uint32_t begin = columns->name_offsets[entry], size = columns->name_offsets[entry + 1] - begin;

    memcpy(paths + end, columns->names + begin, size);
    return end + size;
}

void fffs_scan_walk(const fffs_scan *parent, const uint32_t *entries, const fffs_child *children, uint64_t count,
                    const uint64_t *paths, const uint64_t *digests, int64_t each, int64_t depth,
                    const fffs_walk_columns *out)
{
    uint64_t at = 0;
    int64_t end = 0;

    for (uint64_t k = 0; k < count; k++) {
        const fffs_scan *scan = children[k].scan;

        out->sizes[at] = 0;
        out->weights[at] = each;
        out->depths[at] = depth;
        out->digests[at] = digests[k];
        out->cuts[at] = 2;
        out->ends[at++] = end = append_name(parent, entries[k], out->paths, end);
        for (uint64_t i = 0; i < scan->columns.entries; i++, at++) {
            weigh_entry(&scan->columns.statuses[i], each, &out->sizes[at], &out->weights[at]);
            digest_entry(&scan->columns, i, paths[k], &out->digests[at]);
            out->depths[at] = depth + 1;
            out->cuts[at] = i != 0;
            end = append_name(parent, entries[k], out->paths, end);
            out->paths[end++] = '/';
            out->ends[at] = end = append_name(scan, i, out->paths, end);
        }
    }
}

fffs_scan_columns *fffs_scan_get(fffs_scan *scan)
{
    return &scan->columns;
}

void fffs_scan_free(fffs_scan *scan)
{
    if (!scan)
        return;
    free(scan->columns.parents);
    free(scan->columns.name_offsets);
    free(scan->columns.names);
    free(scan->columns.statuses);
    free(scan->columns.targets);
    free(scan->raw);
    free(scan->items);
    free(scan);
}
