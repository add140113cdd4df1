/* The table of names in an archive: columns that grow, a hash table over them, and notes. */
#include "names.h"
#include "grow.h"
#include "tree.h"

/* The order of the field of hashes, 2^61 - 1, and how many bytes of a name are one of its elements. */
#define ORDER (((uint64_t)1 << 61) - 1)
enum { CHUNK = 7 };

fffs_note *fffs_names_note(fffs_names *names, int kind, const uint8_t *path, size_t size)
{
    fffs_note *note = &names->columns.notes[names->columns.notes_count++];

    *note = (fffs_note){.kind = kind, .before = "", .after = "", .path_size = size};
    if (size)
        memcpy(note->path, path, size < FFFS_NOTED ? size : FFFS_NOTED);
    return note;
}

int fffs_names_count(fffs_names *names, size_t size)
{
    names->columns.room -= FFFS_NAME_EACH + FFFS_NAME_COPIES * (int64_t)size;
    if (names->columns.room >= 0)
        return 0;
    fffs_names_note(names, FFFS_NOTE_MEMORY, NULL, 0);
    return -EINVAL;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    uint64_t sum = (uint64_t)(product & ORDER) + (uint64_t)(product >> 61);

    return sum >= ORDER ? sum - ORDER : sum;
}

/* A polynomial at a random point: equal for two names with a probability below 2^-50, whatever they are. */
static uint64_t hash(uint64_t key, uint32_t parent, const uint8_t *name, uint32_t size)
{
    uint64_t sum = (uint64_t)parent << 8 | size;

    for (uint32_t at = 0; at < size; at += CHUNK) {
        uint64_t chunk = 0;

        memcpy(&chunk, name + at, size - at < CHUNK ? size - at : CHUNK);
        sum = multiply(sum, key) + chunk;
    }
    return multiply(sum, key);
}

/* Returns the slot of a name in a folder, or the free one where it belongs. */
static uint32_t *find(const fffs_names *names, uint32_t parent, const uint8_t *name, uint32_t size)
{
    const fffs_names_columns *columns = &names->columns;
    size_t mask = names->slots_count - 1;

    for (size_t at = hash(names->key, parent, name, size) & mask;; at = (at + 1) & mask) {
        uint32_t *slot = &names->slots[at], entry = *slot - 1;

        if (*slot == 0)
            return slot;
        uint32_t begin = columns->name_offsets[entry];
        if (columns->parents[entry] == parent && columns->name_offsets[entry + 1] - begin == size &&
            memcmp(columns->names + begin, name, size) == 0)
            return slot;
    }
}

uint32_t fffs_names_find(const fffs_names *names, uint32_t parent, struct fffs_part part)
{
    return *find(names, parent, part.name, part.size);
}

/* Makes a table twice as large. */
static int enlarge(fffs_names *names)
{
    const fffs_names_columns *columns = &names->columns;
    size_t room = names->slots_count * 2;
    uint32_t *fresh = fffs_allocate_zeroed(room, sizeof *fresh);

    if (!fresh)
        return -ENOMEM;
    free(names->slots);
    names->slots = fresh;
    names->slots_count = room;
    for (uint32_t e = 0; e < columns->entries; e++) {
        uint32_t begin = columns->name_offsets[e];

        if (columns->parents[e] != FFFS_UNSET)
            *find(names, columns->parents[e], columns->names + begin, columns->name_offsets[e + 1] - begin) = e + 1;
    }
    return 0;
}

/* Makes room for another entry with a name of a size. */
static int make_room(fffs_names *names, size_t size)
{
    fffs_names_columns *columns = &names->columns;
    size_t wanted = columns->entries + 1, used = columns->name_offsets[columns->entries] + size;

    if (wanted >= FFFS_UNSET || used >= FFFS_UNSET) {
        fffs_names_note(names, FFFS_NOTE_NAMES, NULL, 0);
        return -EINVAL;
    }
    if (fffs_grow(&columns->names, &names->names_room, used, 1))
        return -ENOMEM;
    if (wanted * 4 > names->slots_count * 3 && enlarge(names))
        return -ENOMEM;
    if (wanted <= names->entries_room)
        return 0;
    size_t room = fffs_next_room(names->entries_room, wanted);
    if (fffs_resize(&columns->parents, room * sizeof *columns->parents) ||
        fffs_resize(&columns->owners, room * sizeof *columns->owners) ||
        fffs_resize(&columns->contents, room * sizeof *columns->contents) ||
        fffs_resize(&columns->name_offsets, (room + 1) * sizeof *columns->name_offsets))
        return -ENOMEM;
    names->entries_room = room;
    return 0;
}

int fffs_names_append(fffs_names *names, uint32_t parent, struct fffs_part part, uint32_t *entry)
{
    fffs_names_columns *columns = &names->columns;
    int status = fffs_names_count(names, part.size);

    if (!status)
        status = make_room(names, part.size);
    if (status)
        return status;
    uint32_t e = (uint32_t)columns->entries++, begin = columns->name_offsets[e];
    uint32_t *slot = find(names, parent, part.name, part.size);
    if (*slot)
        columns->parents[*slot - 1] = FFFS_UNSET;
    *slot = e + 1;
    memcpy(columns->names + begin, part.name, part.size);
    columns->name_offsets[e + 1] = begin + part.size;
    columns->parents[e] = parent;
    columns->owners[e] = e;
    columns->contents[e] = (fffs_content){0};
    if (parent)
        columns->contents[parent - 1].place = 1;
    *entry = e;
    return 0;
}

int fffs_names_new(uint64_t key, int64_t room, fffs_names **names)
{
    fffs_names *made = fffs_allocate_zeroed(1, sizeof *made);

    if (!made)
        return -ENOMEM;
    made->key = key % (ORDER - 1) + 1;
    made->columns.room = room;
    made->slots_count = 1024;
    made->slots = fffs_allocate_zeroed(made->slots_count, sizeof *made->slots);
    made->columns.name_offsets = fffs_allocate_zeroed(1, sizeof *made->columns.name_offsets);
    if (!made->slots || !made->columns.name_offsets) {
        fffs_names_free(made);
        return -ENOMEM;
    }
    *names = made;
    return 0;
}

void fffs_names_end(fffs_names *names)
{
    free(names->slots);
    names->slots = NULL;
}

void fffs_names_free(fffs_names *names)
{
    free(names->columns.parents);
    free(names->columns.owners);
    free(names->columns.name_offsets);
    free(names->columns.names);
    free(names->columns.contents);
    free(names->columns.targets);
    fffs_names_end(names);
    free(names);
}

fffs_names_columns *fffs_names_get(fffs_names *names)
{
    return &names->columns;
}
