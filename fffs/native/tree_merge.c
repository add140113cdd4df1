/* Merges trees into their union, in which the names of an earlier tree hide those of later ones. */
#include "fault.h"
#include "tree.h"

#include <stdlib.h>
#include <sys/stat.h>

/* A folder of a tree, whose entries belong to folder into of the union. */
struct part {
    uint32_t source, node, into;
};

/* What is left of a part: its first name, entry and the end of its entries. */
struct rest {
    const uint8_t *name;
    uint32_t length, source, entry, end;
};

/* The queue has the parts of each folder of the union together, by ascending source, and the folders by number: they
 * are merged breadth first. The rests of the folder that is being merged are a heap: the first is at rests[0]. */
struct merge {
    const fffs_merge_source *sources;
    fffs_merged *out;
    struct part *queue;
    uint64_t begun, queued;
    struct rest *rests;
    size_t live;
    uint32_t *numbers; /* of each node with several names, in all trees: its number in the union; 0: not shown yet */
};

/* Names sort by bytes, and equal ones by their trees. */
static bool precedes(const struct rest *a, const struct rest *b)
{
    int order = fffs_compare_names(a->name, a->length, b->name, b->length);

    return order < 0 || (order == 0 && a->source < b->source);
}

/* Moves a rest down the heap to its place. */
static void sift(struct merge *m, size_t at)
{
    struct rest *rests = m->rests, moved = rests[at];

    for (size_t child; (child = 2 * at + 1) < m->live; at = child) {
        if (child + 1 < m->live && precedes(&rests[child + 1], &rests[child]))
            child++;
        if (precedes(&moved, &rests[child]))
            break;
        rests[at] = rests[child];
    }
    rests[at] = moved;
}

static void find_name(const struct merge *m, struct rest *rest)
{
    const fffs_tree *tree = m->sources[rest->source].tree;
    uint32_t start = tree->name_offsets[rest->entry];

    rest->name = tree->names + start;
    rest->length = tree->name_offsets[rest->entry + 1] - start;
}

static void add_part(struct merge *m, uint32_t source, uint32_t node, uint32_t into)
{
    m->queue[m->queued++] = (struct part){source, node, into};
}

/* Takes the parts of the next folder from the queue, and makes a heap of those that have entries. Returns its number. */
static uint32_t take_parts(struct merge *m)
{
    uint32_t folder = m->queue[m->begun].into;

    for (; m->begun < m->queued && m->queue[m->begun].into == folder; m->begun++) {
        const struct part *part = &m->queue[m->begun];
        const fffs_tree *tree = m->sources[part->source].tree;
        uint32_t first = tree->ref[part->node], count = tree->count[part->node];

        if (count == 0)
            continue;
        struct rest *rest = &m->rests[m->live++];
        *rest = (struct rest){NULL, 0, part->source, first, first + count};
        find_name(m, rest);
    }
    for (size_t k = m->live / 2; k-- > 0;)
        sift(m, k);
    return folder;
}

/* Adds a node of a tree to the union. Returns 0, or -EOVERFLOW if a number does not fit. */
static int add_node(struct merge *m, uint32_t source, uint32_t node, uint32_t parent)
{
    const fffs_merge_source *from = &m->sources[source];
    const fffs_tree *tree = from->tree;
    fffs_merged *out = m->out;
    uint64_t ref = 0;

    if (out->nodes == FFFS_UNSET - 1)
        return -EOVERFLOW;
    uint32_t number = (uint32_t)out->nodes++;
    bool is_folder = S_ISDIR(tree->mode[node]);
    if (!is_folder)
        ref = tree->ref[node] + (S_ISLNK(tree->mode[node]) ? from->first_target : from->first_record);
    if (ref > UINT32_MAX)
        return -EOVERFLOW;
    out->mtime[number] = tree->mtime[node];
    out->mode[number] = tree->mode[node];
    out->ref[number] = (uint32_t)ref;
    out->count[number] = S_ISLNK(tree->mode[node]) ? tree->count[node] : 0;
    out->parent[number] = is_folder ? parent : 0;
    out->nlink[number] = is_folder ? 2 : 0; /* names are counted as they are added */
    if (is_folder)
        add_part(m, source, node, number);
    return 0;
}

/* Adds the first name of the heap to a folder of the union. Returns 0 or -EOVERFLOW. */
static int show(struct merge *m, const struct rest *rest, uint32_t folder)
{
    const fffs_merge_source *from = &m->sources[rest->source];
    fffs_merged *out = m->out;
    uint32_t node = from->tree->entry_nodes[rest->entry], number = 0;
    bool is_folder = S_ISDIR(from->tree->mode[node]);
    bool is_linked = !is_folder && from->tree->nlink[node] > 1;

    if (out->entries == FFFS_UNSET - 1 || rest->length >= FFFS_UNSET - out->names_size)
        return -EOVERFLOW;
    if (is_linked)
        number = m->numbers[from->first_node + node];
    if (number == 0) {
        number = (uint32_t)out->nodes;
        int status = add_node(m, rest->source, node, folder);
        if (status)
            return status;
        if (is_linked)
            m->numbers[from->first_node + node] = number;
    }
    out->nlink[is_folder ? folder : number]++;
    out->entry_nodes[out->entries] = number;
    out->name_offsets[out->entries++] = (uint32_t)out->names_size;
    memcpy(out->names + out->names_size, rest->name, rest->length);
    out->names_size += rest->length;
    return 0;
}

/* Merges the first of the heap with the entry of that name, which was just added, if both are folders; else it is
 * hidden. */
static void repeat(struct merge *m, const struct rest *rest, uint32_t folder)
{
    const fffs_tree *tree = m->sources[rest->source].tree;
    fffs_merged *out = m->out;
    uint32_t node = tree->entry_nodes[rest->entry], shown = out->entry_nodes[out->entries - 1];

    if (S_ISDIR(tree->mode[node]) && S_ISDIR(out->mode[shown])) {
        add_part(m, rest->source, node, shown);
        return;
    }
    if (out->hidden < out->hidden_room)
        out->hidden_names[out->hidden] = (fffs_hidden_name){folder, rest->source, rest->entry};
    out->hidden++;
}

/* Whether the first of the heap has the name that was added last. */
static bool is_last_name(const struct merge *m, const struct rest *rest)
{
    uint32_t start = m->out->name_offsets[m->out->entries - 1];

    return rest->length == m->out->names_size - start && memcmp(rest->name, m->out->names + start, rest->length) == 0;
}

static int merge_folder(struct merge *m)
{
    uint32_t folder = take_parts(m), last = FFFS_UNSET; /* last: the tree of the name that was added last */

    m->out->ref[folder] = (uint32_t)m->out->entries;
    while (m->live) {
        struct rest *first = &m->rests[0];

        if (last != FFFS_UNSET && first->source != last && is_last_name(m, first)) {
            repeat(m, first, folder);
        } else {
            int status = show(m, first, folder);
            if (status)
                return status;
            last = first->source;
        }
        if (++first->entry < first->end)
            find_name(m, first);
        else
            *first = m->rests[--m->live];
        sift(m, 0);
    }
    m->out->count[folder] = (uint32_t)m->out->entries - m->out->ref[folder];
    return 0;
}

static uint64_t count_folders(const fffs_tree *tree)
{
    uint64_t folders = 0;

    for (uint64_t i = 0; i < tree->nodes; i++)
        folders += S_ISDIR(tree->mode[i]) ? 1 : 0;
    return folders;
}

static int merge_all(struct merge *m, size_t count)
{
    int status = add_node(m, 0, 0, 0);

    for (uint32_t k = 1; k < count; k++)
        add_part(m, k, 0, 0);
    while (!status && m->begun < m->queued)
        status = merge_folder(m);
    m->out->name_offsets[m->out->entries] = (uint32_t)m->out->names_size;
    return status;
}

int fffs_tree_merge(const fffs_merge_source *sources, size_t count, fffs_merged *out)
{
    uint64_t folders = 0, nodes = 0;

    if (count == 0 || count >= FFFS_UNSET)
        return -EINVAL;
    out->nodes = out->entries = out->names_size = out->hidden = 0;
    for (size_t k = 0; k < count; k++) {
        folders += count_folders(sources[k].tree);
        nodes += sources[k].tree->nodes;
    }
    struct merge m = {.sources = sources, .out = out};
    m.queue = fffs_allocate(folders * sizeof *m.queue);
    m.rests = fffs_allocate(count * sizeof *m.rests);
    m.numbers = fffs_allocate_zeroed(nodes, sizeof *m.numbers); /* pages that are not written take no memory */
    int status = m.queue && m.rests && m.numbers ? merge_all(&m, count) : -ENOMEM;
    free(m.queue);
    free(m.rests);
    free(m.numbers);
    return status;
}
