/* The names in an archive: what unpacking its members in their order would give, without unpacking them. */
#include "names.h"
#include "grow.h"
#include "tree.h"

#include <sys/stat.h>

static void warn(fffs_names *names, const fffs_member *member, const char *before, uint32_t what, const char *after)
{
    fffs_note *note = fffs_names_note(names, FFFS_NOTE_WARNING, member->name, member->name_size);

    note->before = before;
    note->between = what ? FFFS_BETWEEN_WHAT : FFFS_BETWEEN_NOTHING;
    note->what = what;
    note->after = after;
}

/* Notes why a path is refused. Returns -EINVAL. */
static int refuse(fffs_names *names, const uint8_t *path, size_t size, const char *why)
{
    fffs_names_note(names, FFFS_NOTE_REFUSED, path, size)->before = why;
    return -EINVAL;
}

static int refuse_for(fffs_names *names, const fffs_member *member, const char *before, const uint8_t *other,
                      size_t size, const char *after)
{
    fffs_note *note = fffs_names_note(names, FFFS_NOTE_REFUSED, member->name, member->name_size);

    note->before = before;
    note->between = FFFS_BETWEEN_OTHER;
    note->other_size = size;
    if (size)
        memcpy(note->other, other, size < FFFS_NOTED ? size : FFFS_NOTED);
    note->after = after;
    return -EINVAL;
}

static int refuse_member(fffs_names *names, const fffs_member *member, const char *why)
{
    return refuse(names, member->name, member->name_size, why);
}

/* ---------------------------------------------------------------- paths */

/* Takes the next name of a path from *at on. Returns false at the end. */
static bool next_part(const uint8_t *path, size_t size, size_t *at, struct fffs_part *part)
{
    while (*at < size) {
        const uint8_t *name = path + *at, *slash = memchr(name, '/', size - *at);
        size_t length = slash ? (size_t)(slash - name) : size - *at;

        *at += length + (slash != NULL);
        if (length == 0 || (length == 1 && name[0] == '.'))
            continue;
        *part = (struct fffs_part){name, (uint32_t)(length < FFFS_UNSET ? length : FFFS_UNSET)};
        return true;
    }
    return false;
}

/* Notes a slash at the beginning of a path, and refuses names that are invalid. */
static int check_path(fffs_names *names, const uint8_t *path, size_t size)
{
    size_t at = 0, longest = 0, length = 0;
    bool leaves = false;
    struct fffs_part part;

    if (size && path[0] == '/' && !names->stripped) {
        names->stripped = true;
        fffs_names_note(names, FFFS_NOTE_SLASH, path, size);
    }
    while (next_part(path, size, &at, &part)) {
        leaves = leaves || (part.size == 2 && memcmp(part.name, "..", 2) == 0);
        longest = part.size > longest ? part.size : longest;
        length += (length > 0) + part.size;
    }
    const char *why = leaves                          ? "a name with '..', which would lead out of the folder"
                      : size && memchr(path, 0, size) ? "a name with a NUL byte"
                      : longest > FFFS_NAME_MAX       ? "a name of more than 255 bytes"
                      : length > FFFS_PATH_MAX        ? "a path of more than 4095 bytes"
                                                      : NULL;
    return why ? refuse(names, path, size, why) : 0;
}

/* Replaces *parent by the folder of a name in it, which is made if it is missing. */
static int enter(fffs_names *names, const fffs_member *member, struct fffs_part part, uint32_t *parent)
{
    fffs_names_columns *columns = &names->columns;
    uint32_t found = fffs_names_find(names, *parent, part), entry;

    if (!found) {
        int status = fffs_names_append(names, *parent, part, &entry);

        if (status)
            return status;
        columns->contents[entry].mode = S_IFDIR;
        found = entry + 1;
    }
    uint32_t mode = columns->contents[columns->owners[found - 1]].mode;
    if (!S_ISDIR(mode))
        return refuse_for(names, member, "", part.name, part.size,
                          S_ISLNK(mode) ? " is a link, which would be followed, not a folder"
                                        : " is a file, not a folder");
    *parent = found;
    return 0;
}

/* Enters the folders of a member's path but the last name, which *last gets, of size 0 if there is none. */
static int enter_folders(fffs_names *names, const fffs_member *member, uint32_t *parent, struct fffs_part *last)
{
    struct fffs_part part;
    size_t at = 0;

    *parent = 0;
    *last = (struct fffs_part){0};
    int status = check_path(names, member->name, member->name_size);
    while (!status && next_part(member->name, member->name_size, &at, &part)) {
        if (last->size)
            status = enter(names, member, *last, parent);
        *last = part;
    }
    return status;
}

/* ---------------------------------------------------------------- members */

static void note_time(fffs_names *names, const fffs_member *member)
{
    fffs_names_columns *columns = &names->columns;

    if (member->far)
        fffs_names_note(names, FFFS_NOTE_TIME, member->name, member->name_size);
    if (!columns->timed || member->mtime > columns->newest)
        columns->newest = member->mtime;
    columns->timed = 1;
}

static int add_folder(fffs_names *names, const fffs_member *member)
{
    fffs_names_columns *columns = &names->columns;
    struct fffs_part last;
    uint32_t parent;
    int status = enter_folders(names, member, &parent, &last);

    if (!status && last.size)
        status = enter(names, member, last, &parent);
    if (status)
        return status;
    fffs_content *folder = parent ? &columns->contents[parent - 1] : &columns->root;
    note_time(names, member);
    folder->mode = S_IFDIR | member->mode;
    folder->mtime = member->mtime;
    folder->size = 1;
    return 0;
}

/* Puts content, or that of another entry if owner is below FFFS_UNSET, at a member's path. */
static int put(fffs_names *names, const fffs_member *member, const fffs_content *content, uint32_t owner)
{
    fffs_names_columns *columns = &names->columns;
    struct fffs_part last;
    uint32_t parent, entry;
    int status = enter_folders(names, member, &parent, &last);

    if (status)
        return status;
    if (!last.size)
        return refuse_member(names, member, "a file or link without a name");
    uint32_t old = fffs_names_find(names, parent, last) - 1;
    const fffs_content *there = old == FFFS_UNSET ? NULL : &columns->contents[columns->owners[old]];
    if (there && S_ISDIR(there->mode) && there->place)
        return refuse_member(names, member, "a folder that is not empty has the same name as this file or link");
    uint32_t mode = owner == FFFS_UNSET ? content->mode : columns->contents[owner].mode;
    if (S_ISLNK(mode))
        status = fffs_names_count(names, (size_t)(owner == FFFS_UNSET ? content : &columns->contents[owner])->size);
    if (status || (there && columns->owners[old] == owner))
        return status;
    if (there)
        warn(names, member, "several members have this name; only the last one is packed", 0, "");
    /* An entry is used again, unless hard links need its content. */
    if (there && (columns->owners[old] != old || !there->links))
        entry = old;
    else
        status = fffs_names_append(names, parent, last, &entry);
    if (status)
        return status;
    columns->owners[entry] = owner == FFFS_UNSET ? entry : owner;
    if (owner == FFFS_UNSET)
        columns->contents[entry] = *content;
    else
        columns->contents[owner].links++;
    return 0;
}

static int add_symlink(fffs_names *names, const fffs_member *member)
{
    fffs_names_columns *columns = &names->columns;
    size_t size = member->target_size, at = columns->targets_size;

    if (!size || size > FFFS_TARGET_MAX || memchr(member->target, 0, size))
        return refuse_member(names, member, "a symbolic link whose target is empty, over 4095 bytes, or has a NUL");
    if (fffs_grow(&columns->targets, &names->targets_room, at + size, 1))
        return -ENOMEM;
    memcpy(columns->targets + at, member->target, size);
    columns->targets_size += size;
    note_time(names, member);
    const fffs_content link = {
        .mtime = member->mtime, .place = (int64_t)at, .size = (int64_t)size, .mode = S_IFLNK | 0777};
    return put(names, member, &link, FFFS_UNSET);
}

static int add_hard_link(fffs_names *names, const fffs_member *member)
{
    fffs_names_columns *columns = &names->columns;
    uint32_t parent = 0; /* the entry + 1 of what was found so far */
    bool found = true;
    struct fffs_part part;
    size_t at = 0;
    int status = check_path(names, member->target, member->target_size);

    if (status)
        return status;
    while (found && next_part(member->target, member->target_size, &at, &part)) {
        found = !parent || S_ISDIR(columns->contents[columns->owners[parent - 1]].mode);
        parent = found ? fffs_names_find(names, parent, part) : 0;
        found = parent != 0;
    }
    uint32_t owner = parent ? columns->owners[parent - 1] : FFFS_UNSET;
    if (!parent || S_ISDIR(columns->contents[owner].mode))
        return refuse_for(names, member, "a hard link to ", member->target, member->target_size,
                          ", which is not a file before it in the archive");
    if (columns->contents[owner].mode == 0)
        warn(names, member, "a hard link to ", (uint32_t)columns->contents[owner].size, ", left out");
    return put(names, member, NULL, owner);
}

int fffs_names_add(fffs_names *names, const fffs_member *member)
{
    fffs_content content = {.mtime = member->mtime, .place = member->place, .size = member->size};

    switch (member->kind) {
    case '0':
        content.mode = S_IFREG | member->mode;
        note_time(names, member);
        return put(names, member, &content, FFFS_UNSET);
    case '1': return add_hard_link(names, member);
    case '2': return add_symlink(names, member);
    case '5':
        if (member->size && member->what == '5') /* not GNU's list of what is in a folder */
            warn(names, member, "a folder, because of the slash at its end; its bytes are left out", 0, "");
        return add_folder(names, member);
    default:
        content = (fffs_content){.size = member->what};
        warn(names, member, "", member->what, ", left out");
        return put(names, member, &content, FFFS_UNSET);
    }
}
