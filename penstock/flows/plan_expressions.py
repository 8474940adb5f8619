"""What is known of each kind of expression that Spark's plans are made of, in five lists.

A list names what somebody has looked at. An expression on none of them is not known: no view that holds it is proved,
and its fingerprint holds the source of the project. Each function of a new Spark is such a one.
"""

from __future__ import annotations


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


EXACT = _listed("""
    Abs Acos Acosh Add AddMonths AesDecrypt AggregateExpression Alias And ApproxTopKEstimate ArrayAggregate ArrayAppend
    ArrayBinarySearch ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll
    ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove ArrayRepeat ArraySize
    ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip Ascii Asin Asinh AssertTrue AtLeastNNonNulls Atan Atan2
    Atanh AttributeReference AvroDataToCatalyst BRound Base32 Base64 Between Bin BinaryPad BinaryPredicate BitLength
    BitmapBitPosition BitmapBucketNumber BitmapCount BitwiseAnd BitwiseCount BitwiseGet BitwiseNot BitwiseOr BitwiseXor
    CaseWhen Cast CatalystDataToAvro CatalystDataToProtobuf Cbrt Ceil CheckOverflow Chr Coalesce Collate Collation
    CollationAwareMurmur3Hash CollationAwareXxHash64 CollationKey CommonExpressionDef CommonExpressionRef Concat
    ConcatWs Contains Conv ConvertTimezone Cos Cosh Cot Crc32 CreateArray CreateMap CreateNamedStruct Csc CsvToStructs
    CurrentRow DateAdd DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate DateSub DatetimeSub
    DayName DayOfMonth DayOfWeek DayOfYear Decode DirectShufflePartitionID Divide DivideDTInterval DivideInterval
    DivideYMInterval DropField ElementAt Elt Encode EndsWith EqualNull EqualNullSafe EqualTo EulerNumber Exists Exp
    Explode Expm1 Extract ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes
    ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays
    ExtractIntervalHours ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears
    Factorial FindInSet Flatten Floor FormatNumber FormatString FromAvro FromProtobuf FromUTCTimestamp FromUnixTime
    GeneratorOuter Get GetArrayItem GetArrayStructFields GetJsonObject GetMapValue GetStructField GetTimestamp
    GreaterThan GreaterThanOrEqual Greatest Hex HllSketchEstimate HllUnion Hmac Hour HoursOfTime Hypot ILike If In
    InSet InSubquery InitCap Inline IntegralDivide IsNaN IsNotNull IsNotUnknown IsNull IsUnknown IsValidUTF8
    IsValidVariant IsVariantNull JaroWinkler JsonObjectKeys JsonTable JsonToStructs JsonTuple KllSketchGetNBigint
    KllSketchGetNDouble KllSketchGetNFloat KllSketchGetQuantileBigint KllSketchGetQuantileDouble
    KllSketchGetQuantileFloat KllSketchGetRankBigint KllSketchGetRankDouble KllSketchGetRankFloat
    KllSketchToStringBigint KllSketchToStringDouble KllSketchToStringFloat KnownFloatingPointNormalized
    KnownNotContainsNull KnownNotNull KnownNullable LambdaFunction LastDay LateralSubquery Least Left Length
    LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like LikeAll LikeAny ListQuery Literal Log Log10 Log1p Log2
    Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeDecimal MakeInterval MakeTime MakeTimestamp
    MakeTimestampFromDateTime MakeTimestampLTZ MakeTimestampLTZNanos MakeTimestampNTZ MakeTimestampNTZNanos
    MakeValidUTF8 MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys
    MapSort MapValues MapZipWith Mask Md5 MicrosToTimestamp MillisToTimestamp Minute MinutesOfTime Month MonthName
    MonthsBetween Multiply MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NaNvl NamedLambdaVariable
    NanosToTimestamp NextDay Not NotLikeAll NotLikeAny NullIf NullIfResult NullIfZero Nvl Nvl2 OctetLength Or
    OuterReference Overlay ParseJson ParseToDate ParseToTimestamp ParseUrl Pi Pmod PosExplode Pow
    PreciseTimestampConversion ProtobufDataToCatalyst Quarter Quote RLike RaiseError RegExpCount RegExpExtract
    RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr Remainder ReplicateRows ResolvedCollation Reverse Right
    Rint Round RoundCeil RoundFloor SQLScalarFunction ST_AsBinary ST_GeogFromWKB ST_GeomFromWKB ST_SetSrid ST_Srid
    ScalarSubquery SchemaOfAvro SchemaOfCsv SchemaOfJson SchemaOfVariant SchemaOfXml Sec Second SecondWithFraction
    SecondWithFractionNanos SecondsOfTime SecondsOfTimeWithFraction SecondsToTimestamp Sentences Sequence Sha1 Sha2
    ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Size Slice SortArray SortOrder SoundEx SpecifiedWindowFrame
    SplitPart Sqrt Stack StartsWith StringDecode StringInstr StringInstrWithOccurrence StringLPad StringLocate
    StringRPad StringRepeat StringReplace StringSpace StringSplit StringSplitSQL StringToMap StringTranslate StringTrim
    StringTrimBoth StringTrimLeft StringTrimRight StructsToCsv StructsToJson StructsToXml Substring SubstringIndex
    Subtract SubtractDates SubtractTimes SubtractTimestamps Tan Tanh ThetaDifference ThetaIntersection
    ThetaSketchEstimate ThetaUnion TimeAddInterval TimeBucket TimeDiff TimeFromMicros TimeFromMillis TimeFromSeconds
    TimeToMicros TimeToMillis TimeToSeconds TimeTrunc TimestampAdd TimestampAddInterval TimestampAddYMInterval
    TimestampDiff ToAvro ToBinary ToCharacter ToDegrees ToJavaArray ToNumber ToPrettyString ToProtobuf ToRadians ToTime
    ToUTCTimestamp ToUnixTimestamp ToVariantObject TransformKeys TransformValues TruncDate TruncTimestamp TryAdd
    TryAesDecrypt TryDivide TryElementAt TryEval TryMakeInterval TryMakeTimestamp TryMakeTimestampFromDateTime TryMod
    TryMultiply TryParseUrl TrySubtract TryToBinary TryToNumber TryUrlDecode TryValidateUTF8 TupleDifferenceDouble
    TupleDifferenceInteger TupleDifferenceThetaDouble TupleDifferenceThetaInteger TupleIntersectionDouble
    TupleIntersectionInteger TupleIntersectionThetaDouble TupleIntersectionThetaInteger TupleSketchEstimateDouble
    TupleSketchEstimateInteger TupleSketchSummaryDouble TupleSketchSummaryInteger TupleSketchThetaDouble
    TupleSketchThetaInteger TupleUnionDouble TupleUnionInteger TupleUnionThetaDouble TupleUnionThetaInteger TypeOf
    UnBase32 UnBase64 UnaryMinus UnaryPositive UnboundedFollowing UnboundedPreceding Unhex UnixDate UnixMicros
    UnixMillis UnixNanos UnixSeconds UnixTimestamp UnscaledValue UnspecifiedFrame UnwrapUDT UpdateFields Upper
    UrlDecode UrlEncode ValidateUTF8 VariableReference VariantArrayAppend VariantDelete VariantExplode VariantGet
    VariantInsert VariantSet VariantStripNulls VectorCosineSimilarity VectorInnerProduct VectorL2Distance VectorNorm
    VectorNormalize WeekDay WeekOfYear WidthBucket WindowExpression WindowSpecDefinition With WithField XPathBoolean
    XPathDouble XPathFloat XPathInt XPathList XPathLong XPathShort XPathString XmlToStructs XxHash64 Year YearOfWeek
    ZeroIfNull ZipWith
""")
"""What gives the same for the same arguments, whenever, wherever and in whatever order it is computed."""

_SKETCHES = _listed("""
    BitmapAndAgg BitmapConstructAgg BitmapOrAgg CountMinSketchAgg HllUnionAgg HyperLogLogPlusPlus ThetaSketchAgg
    ThetaUnionAgg
""")
"""Sketches that are equal to the byte, whatever the order of rows and wherever batches are cut."""

EXACT_AGGREGATES = _SKETCHES | _listed("""
    Average BitAndAgg BitOrAgg BitXorAgg BoolAnd BoolOr Corr Count CountIf CovPopulation CovSample Max Min StddevPop
    StddevSamp Sum VariancePop VarianceSamp
""")
"""What gives the same for the same rows in any order; but see `FLOATING`."""

BOUNDED_AGGREGATES = _listed("ApproximatePercentile ApproxTopK KllSketchAggDouble")
"""What depends on the order of rows, or on chance, and is within a bound: where `summaries.py` states it."""

FLOATING = EXACT_AGGREGATES - _SKETCHES - _listed("BitAndAgg BitOrAgg BitXorAgg BoolAnd BoolOr Count CountIf Max Min")
"""What adds numbers up: of floating-point numbers the order decides the last digits."""

OTHER_AGGREGATES = _listed("""
    AnyValue ApproxCountDistinctForIntervals ApproxTopK ApproxTopKAccumulate ApproxTopKCombine ApproximatePercentile
    CollectFrequentItems CollectList CollectSet CollectTopK CollectUnion
    First HistogramNumeric HllSketchAgg KllMergeAggBigint
    KllMergeAggDouble KllMergeAggFloat KllSketchAggBigint KllSketchAggDouble KllSketchAggFloat Kurtosis Last ListAgg
    MaxBy MaxMinByK Median MinBy Mode PandasCovar PandasKurtosis PandasMode PandasProduct PandasSkewness PandasStddev
    PandasVariance Percentile PercentileCont PercentileDisc PivotFirst Product RegrAvgX RegrAvgY RegrCount
    RegrIntercept RegrR2 RegrSXX RegrSXY RegrSYY RegrSlope SchemaOfVariantAgg Skewness ThetaIntersectionAgg
    TupleIntersectionAggDouble TupleIntersectionAggInteger TupleSketchAggDouble
    TupleSketchAggInteger TupleUnionAggDouble TupleUnionAggInteger VectorAvg VectorSum
""")
"""What the order of rows may decide, or chance, or what was not looked at closely enough to say more."""

UNSTEADY = _listed("""
    AesEncrypt CallMethodViaReflection Collations CounterDiff CounterDiffWithStartTime CumeDist DenseRank
    DistributedSequenceID EWM InputFileBlockLength InputFileBlockStart InputFileName KllSketchMergeBigint
    KllSketchMergeDouble KllSketchMergeFloat Lag Lead MonotonicallyIncreasingID NTile NthValue NullIndex PercentRank
    Rank RowNumber SQLKeywords Shuffle SparkPartitionID SparkVersion TryReflect Uniform
""")
"""What depends on the place of a row, on chance or on the Spark that computes it; its text says all that it does."""

OF_THE_MOMENT = _listed("""
    CurrentBatchTimestamp CurrentCatalog CurrentDatabase CurrentDate CurrentPath CurrentRow CurrentTime CurrentTimeZone
    CurrentTimestamp CurrentTimestampNanos CurrentUser LocalTimestamp LocalTimestampNanos Now Rand RandStr Randn Uuid
""")
"""What an optimised plan holds as a constant, or with a seed that changes: only the plan before says what is meant.

`CurrentRow`, the bound of a window, is here for the sake of stored fingerprints.
"""

TOLD = EXACT | EXACT_AGGREGATES | OTHER_AGGREGATES | UNSTEADY | OF_THE_MOMENT
"""Of what the text of a plan says all that it does."""

REGISTERED = _listed("PythonUDF PythonUDAF PythonUDTF UserDefinedGenerator ScalaUDF")
"""Functions that somebody has registered: they have names of their own, and what they do stands elsewhere."""
