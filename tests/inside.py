"""The internals that tests may use, by name. Tests use public modules for everything else.

If an internal moves, only its line here changes. A name is resolved when a test imports it, so that tests of reading
need neither torch nor pyfuse3.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = """
fffs.torch.ahead
fffs.torch.arena
fffs.mount.daemon.background
fffs.formats.bag
fffs.granular.bag_reader
fffs.granular.codecs
fffs.granular.exact_codecs
fffs.granular.granular_readers
fffs.granular.grown_columns
fffs.granular.resuming_writers
fffs.granular.sample_sources
fffs.base.descriptors
fffs.torch.disk
fffs.files.fsspec_file
fffs.files.fsspec_host
fffs.files.fsspec_servers
fffs.files.fsspec_web_file
fffs.torch.elastic
fffs.cluster.lease
fffs.cli.checks.file_checks=doctor_files
fffs.cluster.plan_objects
fffs.cli.checks.mount_checks=doctor_mounting
fffs.cli.checks.package_checks=doctor_packages
fffs.cli.checks.reading_checks=doctor_reading
fffs.engines.record_parts
fffs.engines.slices
fffs.engines.arrow=engine_tables
fffs.torch.permutation
fffs.files.write_back
fffs.native.engine
fffs.mount.daemon.fastpath
fffs.files.file_systems
fffs.files.inserting
fffs.formats.frames
fffs.formats.part_names
fffs.files.atomic
fffs.files.sync
fffs.layouts.granular=granular_layout
fffs.records.identity
fffs.records.index_cache
fffs.records.joined_index
fffs.records.sequence=record_sequence
fffs.files.leftovers
fffs.files.local
fffs.base.asynchronous
fffs.base.importing
fffs.base.interpreter
fffs.base.long_reads
fffs.objects.aws_profile
fffs.objects.access=object_access
fffs.objects.http_settings
fffs.objects.block_cache
fffs.objects.client=object_client
fffs.objects.lasting
fffs.objects.connection=store_connection
fffs.objects.part_sender
fffs.objects.remote=object_remote
fffs.objects.transfer=object_transfer
fffs.base.memory
fffs.base.modules
fffs.granular.bounded_msgpack
fffs.mount.system.kernel=mount_kernel
fffs.mount.system.mounts
fffs.mount.system.fusermount=mount_fusermount
fffs.packing.pack_file
fffs.mount.daemon.kernel_mount
fffs.mount.system.erofs
fffs.packing.division
fffs.cluster.engines
fffs.converting.foreign.imports
fffs.converting.foreign.mds_folder
fffs.converting.source_files
fffs.cluster.executors
fffs.cluster.processes
fffs.packing.names
fffs.native
fffs.objects.cache_space
fffs.objects.cache_upkeep
fffs.layouts.npy
fffs.formats.ofrecord=ofrecord_files
fffs.granular.optional
fffs.layouts.packed
fffs.tree.packed_pickle
fffs.cli.converting_parser
fffs.cli.parser
fffs.cli.program
fffs.layouts.plain
fffs.converting.records=record_sources
fffs.granular.refs
fffs.granular.shards
fffs.layouts.refs_table
fffs.layouts.rows
fffs.files.pair
fffs.formats.scanned_file
fffs.formats.sources=formats_sources
fffs.packing.sidecars
fffs.packing.object_folder
fffs.cli.commands.info=info_command
fffs.cli.commands.stat=stat_command
fffs.formats.streams
fffs.files.temporary=temporary_files
fffs.files.verity
fffs.formats.tfrecord=tfrecord_files
fffs.layouts.union
fffs.converting.convert_task
fffs.converting.foreign.parquet_items
fffs.converting.foreign.table_items
fffs.converting.verifying
"""

# A module and its names; name=NAME if several modules have one of that name.
NAMES = """
fffs.base.cache_settings: cache_settings caching
fffs.base.failures: reading writing
fffs.base.jobs: Jobs
fffs.base.stopping: current_flag
fffs.base.numbers: divide resolve
fffs.base.sizes: Budget parse_budget parse_size
fffs.cli.program: run=run_program
fffs.converting.foreign.exported: ExportEntry
fffs.converting.foreign.exports: EXPORTS
fffs.converting.foreign.imports: IMPORTS
fffs.converting.foreign.tar_headers: header_of
fffs.converting.kinds: kind_of_source
fffs.converting.parts: cut=cut_parts
fffs.converting.source_files: Sources
fffs.converting.plan: make_plan
fffs.converting.plans: load_plan
fffs.converting.request: Content Request Result
fffs.files.atomic: AtomicFile IN_PLACE
fffs.files.atomic_folder: AtomicFolder LeftoverWarning
fffs.files.dirfd: open_folder remove_content
fffs.files.file: File UInt8Array
fffs.files.fsspec_systems: said_by
fffs.files.local: LocalFile
fffs.files.reopened_file: OPEN=MOST_OPEN OpenFiles ReopenedFile
fffs.files.pwrite: NewFile write_at
fffs.files.sidecar_names: CHECKSUMS=SIDECAR
fffs.files.temporary: SUFFIX
fffs.formats.bag: load=load_bag load_index=load_bag_index
fffs.formats.ffrecord: load_index=load_ffrecord_index
fffs.formats.frame_writer: FrameWriter
fffs.formats.frames: FrameError OFRECORD TFRECORD scan
fffs.formats.ofrecord: OFRecordWriter
fffs.formats.protobuf: encode_bytes encode_varint
fffs.formats.sources: expand_sources load_file open_files
fffs.formats.table: FORMATS Format find_format format_named
fffs.granular.optional: ZSTD library=optional_library
fffs.granular.shards: Shard data_set_folders
fffs.granular.bag_streams: AppendedBag TornTailWarning UnlockedWarning
fffs.granular.zstd: WINDOW_LOG
fffs.layouts: load_records load_shown load_source
fffs.layouts.escape: file_name
fffs.layouts.messages: LARGEST=LARGEST_MESSAGE MOST_FILES
fffs.layouts.packed: load=load_packed
fffs.layouts.rows: Entries FileContent Row RowFolder
fffs.layouts.rows_view: ROW=ROW_INODE RowsView
fffs.layouts.view: CAPACITY DecodedTreeView NotDecoded TreeView
fffs.mount.daemon.fastpath: file_system_of
fffs.mount.daemon.job: Job make_job
fffs.mount.fs.attributes: LARGEST=LARGEST_ATTRIBUTE in_lines
fffs.mount.fs.answers: FIRST=FIRST_ANSWER KEPT=ANSWERS_KEPT
fffs.mount.fs.counters: are_counters
fffs.mount.fs.latency: BUCKETS bucket percentile
fffs.mount.fs.operations: Operations
fffs.mount.fs.reading: Reading LARGE=LARGE_READ
fffs.mount.options: parse=parse_options
fffs.packing.listing: Children WalkColumns
fffs.packing.pack_file: PackFile
fffs.cluster.place_of: place_of
fffs.cluster.plan_target: remove_plan
fffs.packing.scan: scan_folder
fffs.packing.source_folder: open_source
fffs.packing.span: Span
fffs.packing.survey: survey
fffs.packing.verify_plan: verify_files
fffs.cluster.plan_folder: PlanFolder
fffs.mount.system.mountpoint: MARK=MOUNT_POINT_MARK MountPoint is_alive refuse_mounted remove_left
fffs.mount.system.mounts: mount_at
fffs.mount.system.questions: DAEMON=DAEMON_QUESTION ENTRY=ENTRY_QUESTION STAT=STAT_QUESTION
fffs.mount.system.questions: LARGEST=ANSWER_LARGEST read_facts
fffs.native: ffi lib
fffs.native.checksums: CHECKSUMS=KINDS_OF_CHECKSUMS CHECK_CRC32 CHECK_CRC32C CHECK_NONE crc32 crc32_combine crc32c
fffs.native.checksums: mask=mask_crc32c unmask=unmask_crc32c
fffs.native.engine: BLOCK REQUEST
fffs.objects.answering: Answerer _without_markers=without_markers entry_of
fffs.objects.azure_sas: sas_query
fffs.objects.client: SignedUrl list_entries list_objects sign
fffs.objects.lasting: LastingStore
fffs.objects.names: ObjectName absolute=absolute_name base_name is_remote is_url join_url parse_url shown=shown_name
fffs.objects.new_object: NewObject
fffs.objects.overrides: with_absolute_paths
fffs.objects.part_sizes: PartSizes WrittenRanges
fffs.objects.obstore_writes: ObstoreWrites
fffs.objects.protocol: BrokenProtocolError Guard MAX_JSON read_message write_message
fffs.objects.proxies: Proxy can_use proxy_of
fffs.objects.redacting: redact secrets_of
fffs.objects.sending: Sender
fffs.objects.small: delete_objects read_object
fffs.objects.transfer: Totals totals
fffs.objects.tunnels: Tunnelled
fffs.packing.dump: dump plan_parts
fffs.packing.sidecars: keep_checksums
fffs.packing.unpack: unpack
fffs.packing.verify: BadRecord verify
fffs.records.index: RecordIndex
fffs.records.native_store: make_native_store
fffs.records.source_file: SourceFile
fffs.records.small_records: SmallRecords
fffs.records.store: RecordStore
fffs.torch.ahead: has_fixed_order
fffs.torch.state: PARTS=STATE_PARTS VERSION=STATE_VERSION
fffs.tree.builder: TreeBuilder build_tree
fffs.tree.tree: COLUMNS ROOT Tree
"""


def _table() -> dict[str, tuple[str, str | None]]:
    """Return name -> (module, attribute); the attribute is None for a module."""
    table: dict[str, tuple[str, str | None]] = {}
    for line in MODULES.split():
        module, _, name = line.partition("=")
        table[name or module.rpartition(".")[2]] = module, None
    for line in NAMES.strip().splitlines():
        module, _, listed = line.partition(": ")
        for item in listed.split():
            attribute, _, name = item.partition("=")
            if (name or attribute) in table:
                raise ValueError(f"{name or attribute} is listed twice: give one of them another name")
            table[name or attribute] = module, attribute
    return table


TABLE = _table()


def __getattr__(name: str) -> Any:
    if name not in TABLE:
        raise AttributeError(f"tests/inside.py does not list {name}")
    module, attribute = TABLE[name]
    imported = importlib.import_module(module)
    return imported if attribute is None else getattr(imported, attribute)
