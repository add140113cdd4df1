/* Fuzzes tar archives: pieces of any size give the same names and notes, and what was named forms a tree.
 *
 * Input: the size of the pieces (two bytes), then the archive, with checksums that are made right. */
#include <errno.h>
#include <sys/stat.h>

#include "check.h"

enum { BLOCK = 512, INSIDE = 100 };

/* What came of an archive. */
struct outcome {
    fffs_names *names;
    int status;     /* of the last call, or INSIDE if the archive ends inside a member */
    uint64_t notes; /* a digest of all notes */
};

static uint64_t mix(uint64_t sum, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ ((const uint8_t *)data)[i]) * 0x100000001b3;
    return sum;
}

static void take_notes(struct outcome *outcome)
{
    fffs_names_columns *columns = fffs_names_get(outcome->names);

    CHECK(columns->notes_count >= 0 && columns->notes_count <= FFFS_NOTES);
    for (int i = 0; i < columns->notes_count; i++) {
        const fffs_note *note = &columns->notes[i];

        CHECK(note->kind >= FFFS_NOTE_WARNING && note->kind <= FFFS_NOTE_VOLUME && note->before && note->after);
        CHECK(note->kind < FFFS_NOTE_REFUSED || (i + 1 == columns->notes_count && outcome->status == -EINVAL));
        outcome->notes = mix(outcome->notes, &note->kind, sizeof note->kind);
        outcome->notes = mix(outcome->notes, &note->position, sizeof note->position);
        outcome->notes = mix(outcome->notes, note->before, strlen(note->before));
        outcome->notes = mix(outcome->notes, note->path, sizeof note->path);
        outcome->notes = mix(outcome->notes, note->other, sizeof note->other);
    }
    CHECK(outcome->status != -EINVAL ||
          (columns->notes_count && columns->notes[columns->notes_count - 1].kind >= FFFS_NOTE_REFUSED));
    columns->notes_count = 0;
}

/* Parses an archive in pieces, each in memory of its own: reading past the end is seen. */
static struct outcome parse(const uint8_t *data, size_t size, size_t piece)
{
    struct outcome outcome = {.status = FFFS_TAR_MORE};
    fffs_tar *tar;
    fffs_tar_step step = {0};
    size_t at = 0, end = 0;

    CHECK(fffs_names_new(size, 1 << 20, &outcome.names) == 0 && fffs_tar_new(outcome.names, &tar) == 0);
    while (outcome.status == FFFS_TAR_MORE || outcome.status == FFFS_TAR_NOTES) {
        if (outcome.status == FFFS_TAR_MORE)
            end = size - end < piece ? size : end + piece;
        uint8_t *part = exactly(end - at);

        memcpy(part, data + at, end - at);
        outcome.status = fffs_tar_parse(tar, part, end - at, end == size, &step);
        free(part);
        CHECK(step.used <= end - at && (!step.skip || step.used == end - at));
        take_notes(&outcome);
        at += step.used;
        if (step.skip > size - at)
            outcome.status = INSIDE;
        else
            at += step.skip;
        end = end < at ? at : end;
    }
    fffs_tar_free(tar);
    return outcome;
}

/* Every number is where contract.h says it is, and every folder is one. */
static void check_names(const fffs_names_columns *columns)
{
    CHECK(columns->name_offsets[0] == 0);
    for (uint64_t e = 0; e < columns->entries; e++) {
        uint32_t parent = columns->parents[e], length = columns->name_offsets[e + 1] - columns->name_offsets[e];
        const fffs_content *content = &columns->contents[columns->owners[e]];

        CHECK(length >= 1 && length <= FFFS_NAME_MAX && columns->owners[e] < columns->entries);
        CHECK(columns->owners[columns->owners[e]] == columns->owners[e]);
        CHECK(parent == UINT32_MAX || parent <= e);
        CHECK(!parent || parent == UINT32_MAX || S_ISDIR(columns->contents[parent - 1].mode));
        if (S_ISLNK(content->mode))
            CHECK(content->place + content->size <= (int64_t)columns->targets_size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    size_t piece = take(&in, 2) + 1, length = in.left;
    uint8_t *archive = take_array(&in, length);

    for (size_t at = 0; at + BLOCK <= length; at += BLOCK) {
        unsigned sum = 8 * ' ';

        if (memcmp(archive + at + 257, "ustar", 5) != 0)
            continue;
        for (size_t i = 0; i < BLOCK; i++)
            sum += i >= 148 && i < 156 ? 0 : archive[at + i];
        for (size_t i = 0; i < 6; i++)
            archive[at + 148 + i] = (uint8_t)('0' + (sum >> (15 - 3 * i) & 7));
        archive[at + 154] = 0;
    }
    struct outcome whole = parse(archive, length, length + 1), parts = parse(archive, length, piece);
    const fffs_names_columns *a = fffs_names_get(whole.names), *b = fffs_names_get(parts.names);

    check_names(a);
    CHECK(whole.status == parts.status && whole.notes == parts.notes && a->entries == b->entries);
    CHECK(a->targets_size == b->targets_size && a->newest == b->newest && a->room == b->room);
    if (a->entries) {
        CHECK(memcmp(a->parents, b->parents, a->entries * 4) == 0 &&
              memcmp(a->owners, b->owners, a->entries * 4) == 0);
        CHECK(memcmp(a->contents, b->contents, a->entries * sizeof *a->contents) == 0);
    }
    if (length >= BLOCK)
        CHECK(fffs_tar_is_header(archive, (int64_t)length, 1) >= fffs_tar_is_header(archive, (int64_t)length, 0));
    fffs_names_free(whole.names);
    fffs_names_free(parts.names);
    free(archive);
    return 0;
}
